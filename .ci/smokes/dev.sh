# apiece[dev]: the checks, and a few tests.
cd "$CLONE" && python -m ruff check --quiet .ci && python -m mypy --version
python -m pytest -q -p no:cacheprovider tests/test_check.py tests/test_layers.py
