# apiece[ledger]: accounts, a charge, a verified history; and PostgreSQL's driver is there.
printf 'id,consent\na,1\nb,3\n' > people.csv
python -m apiece ledger init people.db --data people.csv --person id --epsilon consent --delta 1e-6
python -m apiece ledger status people.db
python -m apiece ledger verify people.db
python - <<'PY'
from apiece import Ledger
from apiece.ledger.database import make_engine

assert Ledger.open("people.db").remaining(["a", "b"]).shape == (2,)
assert make_engine("postgresql://nobody@localhost/none").dialect.driver == "psycopg"
PY
