"""Private models as scikit-learn has them; what is public of it lies in `apiece.sklearn`."""
