# apiece[oracles]: OpenDP and jax-privacy answer.
python -c "import opendp.prelude as dp; dp.enable_features('contrib'); print(dp.space_of(int))"
python -c "from jax_privacy.matrix_factorization import toeplitz; print(toeplitz.optimize_banded_toeplitz(4, 2))"
