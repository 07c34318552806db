# apiece[lightning]: a run inside Lightning's loop.
export PYTHONPATH="$CLONE/.ci/smokes"
python -W ignore -c "
import lightning
from trainer import trainer
from apiece.adapters.lightning import PrivateModule
run = trainer()
lightning.Trainer(max_epochs=-1, accelerator='cpu', enable_progress_bar=False).fit(PrivateModule(run))
assert run.step_number == 4
"
