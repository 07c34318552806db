# apiece[wandb]: the steps of a run are written to a folder, offline.
export PYTHONPATH="$CLONE/.ci/smokes" WANDB_SILENT=true
python -W ignore - <<'PY'
import glob

import wandb
from trainer import PLAN, trainer

from apiece.adapters.wandb import WandB

with wandb.init(project="smoke", mode="offline"):
    trainer(callbacks=[WandB(PLAN, every=1)]).fit()
(run,) = glob.glob("wandb/offline-run-*/*.wandb")
print(run)
PY
