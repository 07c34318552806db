# apiece[examples]: the panel of the example with many rows a person.
python "$CLONE/examples/panel/make.py" --to . && test -s interviews.csv
