# apiece[train]: a run from the packaged table to its report, its statement and an audit.
cat > job.toml <<'TOML'
[data]
source = "german"
[budgets]
delta = 1e-4
groups = [{ name = "a", epsilon = 1.0, share = 0.5 }, { name = "b", epsilon = 3.0, share = 0.5 }]
[training]
batch_size = 50
steps = 5
[run]
seed = 0
TOML
python -m apiece train job.toml --out run
python -m apiece report run --out report.html
python -m apiece report run --as statement --out statement.json
python -m apiece audit run run
python -c "from apiece.recipes import RECIPES; from apiece import Trainer, clip_and_sum"
cp -r run "$SHARED/"
