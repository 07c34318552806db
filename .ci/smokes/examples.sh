# apiece[examples]: the panel of the example with many rows a person.
python "$CLONE/examples/panel/make.py" && test -s "$CLONE/examples/panel/interviews.csv"
