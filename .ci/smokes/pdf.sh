# apiece[pdf]: the statement of a run, as a page.
# The run is of another environment, where there is one: `train` leaves it in $SHARED.
python -c "import typst, apiece.reporting.papers"
if [ -d "$SHARED/run" ]; then
    python -m apiece report "$SHARED/run" --as statement --out statement.pdf
    test -s statement.pdf
    python -m apiece report "$SHARED/run" --as statement --language de --out erklaerung.pdf
    test -s erklaerung.pdf
fi
