# apiece[bench]: asv reads the benchmarks.
cd "$CLONE" && python -m asv --help > /dev/null && python -c "import research.benchmarks.asv.benchmarks"
