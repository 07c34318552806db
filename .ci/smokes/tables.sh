# apiece[tables]: budgets in tables and Parquet files, a schema, packaged tables, an audit of scores.
printf 'id,consent,age\na,1,30\nb,3,40\nc,1,50\nd,3,60\n' > people.csv
python -c "import pandas; pandas.read_csv('people.csv').to_parquet('people.parquet')"
python -m apiece plan --data people.parquet --epsilon consent --ids id --delta 1e-5 --batch-size 2 \
    --steps 9 --clip-norm 1
python -m apiece schema people.csv --label age --epsilon consent --ids id --out people.toml
python - <<'PY'
from pathlib import Path

import pandas

from apiece import Budgets
from apiece.budgets import BudgetLevels
from apiece.datasets import load

levels = BudgetLevels.from_parquet("people.parquet", epsilon="consent", delta=1e-5)
budgets = Budgets.from_frame(pandas.read_csv("people.csv"), epsilon="consent", delta=1e-5)
assert levels.groups.same_as(budgets.groups)
assert load("german").shape == (1000, 21)
rows = [f"{k},{k % 7 / 7},{k % 2}" for k in range(200)]
Path("canaries.csv").write_text("\n".join(["id,score,included", *rows]))
PY
python -m apiece audit canaries --canaries canaries.csv --delta 1e-5
