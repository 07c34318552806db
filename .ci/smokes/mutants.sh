# apiece[mutants]: the list of survivors is shown.
python -c "import mutmut" && cd "$CLONE" && python -m research.benchmarks.mutants --show > /dev/null
