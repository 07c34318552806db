# apiece[contenders]: the libraries that the benchmarks compare with are there.
python -c "import jax, opacus"
cd "$CLONE/benchmarks" && python training.py --help > /dev/null
