# apiece[pdf]: the statement of a run, as a page; the run folder was made elsewhere.
python - <<'PY'
from apiece.reporting.papers import statement_pdf

try:
    statement_pdf({"statement": "none"})
except KeyError:  # what a statement must have; the library was found
    pass
PY
