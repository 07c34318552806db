# apiece[contenders]: the libraries that the benchmarks compare with are there.
python -c "import jax, opacus"
cd "$CLONE" && python -m research.benchmarks.training --help > /dev/null
