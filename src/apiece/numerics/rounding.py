"""The unit in which rounding errors are counted."""

from typing import Final

UNIT: Final = 2.0**-53
"""The relative error of one floating-point operation, at most."""
