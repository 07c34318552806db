# apiece[mutants]: the list of survivors is shown.
python -c "import mutmut" && cd "$CLONE" && python benchmarks/mutants.py --show > /dev/null
