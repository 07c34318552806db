# apiece[sql]: a SELECT over a table, from the command line and from Python.
python - <<'PY'
from apiece.datasets import Numeric, Schema, load
from apiece.queries import Session

people = load("german").head(200)[["age"]]
people["person"] = [f"p{k}" for k in range(len(people))]
people.to_csv("people.csv", index=False)
schema = Schema({"age": Numeric(0, 120)}, person="person", rows_per_person=1)
select = "SELECT floor(age / 20) AS band, count(*), avg(age) FROM people GROUP BY band"
print(Session(people, schema).ask(select, epsilon=0.3, delta=1e-7))
PY
python -m apiece query people.csv "SELECT count(*) FROM people WHERE age / 2 > 15" \
    --person person --rows-per-person 1 --bounds age=0:120 --epsilon .3 --delta 0
