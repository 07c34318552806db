# apiece[queries]: a question that is charged to a ledger, from the command line and from Python.
python - <<'PY'
import numpy as np

from apiece.datasets import Numeric, Schema, load
from apiece.ledger import Ledger
from apiece.queries import Session

people = load("german").head(200)[["age"]]
people["person"] = [f"p{k}" for k in range(len(people))]
people.to_csv("people.csv", index=False)
ledger = Ledger.open("sqlite:///people.db")
ledger.enroll(people["person"].to_list(), epsilon=np.full(len(people), 3.0), delta=1e-6)
schema = Schema({"age": Numeric(0, 120)}, person="person", rows_per_person=1)
print(Session(people, schema, ledger).ask("mean(age)", epsilon=0.3, delta=1e-7))
PY
python -m apiece query people.csv "count(persons)" --person person --epsilon .3 --delta 0 \
    --ledger sqlite:///people.db
