# apiece[synthesis]: a synthetic table from the command line, charged to a ledger.
python - <<'PY'
import numpy as np
import pandas as pd

draws = np.random.default_rng(0)
age = draws.integers(0, 90, 500)
people = pd.DataFrame({"id": [f"p{k}" for k in range(500)], "age": age})
people["old"] = np.where(age > 60, "yes", "no")
people["consent"] = draws.choice([0.5, 2.0], 500)
people.to_csv("people.csv", index=False)
PY
cat > people.toml <<'TOML'
person = "id"
rows_per_person = 1
[columns.age]
kind = "numeric"
lower = 0
upper = 89
[columns.old]
kind = "categorical"
values = ["yes", "no"]
TOML
python -m apiece ledger init sqlite:///people.db --data people.csv --epsilon consent --person id --delta 1e-6
python -m apiece synthesize people.csv --schema people.toml --epsilon consent --delta 1e-6 --bins 6 \
    --ledger sqlite:///people.db --page public.html --out synthetic.parquet
