# apiece[excel]: a workbook's sheet, from the command line and from Python.
python - <<'PY'
import openpyxl

from apiece.datasets import Numeric, Schema
from apiece.queries import Session

book = openpyxl.Workbook()
book.active.append(["person", "age"])
for number in range(200):
    book.active.append([f"p{number}", 20 + number % 60])
book.save("people.xlsx")
schema = Schema({"age": Numeric(0, 120)}, person="person", rows_per_person=1)
print(Session("people.xlsx", schema).ask("mean(age)", epsilon=0.3, delta=1e-7))
PY
python -m apiece query people.xlsx "count(persons)" --person person --epsilon .3 --delta 0
