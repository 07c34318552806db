"""The unit in which rounding errors are counted, and the range in which they are."""

from typing import Final

UNIT: Final = 2.0**-53
"""The relative error of one floating-point operation, at most."""
LARGEST_LOG_RATIO: Final = 600.0
"""Of two probabilities: beyond it their ratio comes near the end of floating-point numbers."""
