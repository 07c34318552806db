# apiece[pdf]: the statement of a run, as a page.
# The run is of another environment, where there is one: `train` leaves it in $SHARED.
python -c "import fpdf, apiece.reporting.papers"
if [ -d "$SHARED/run" ]; then
    python -m apiece report "$SHARED/run" --as statement --out statement.pdf
    test -s statement.pdf
fi
