"""The figure of privacy curves shows upper bounds, each under its label."""

from pathlib import Path

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.errors import InputError
from apiece.mechanisms import Composed, Gaussian, Repeated
from apiece.reporting import save
from apiece.reporting.plots import privacy_curves


def test_lines_are_the_upper_bounds() -> None:
    curves = {f"z = {z}": privacy_curve(Gaussian(z), method="gdp") for z in (1.0, 2.0)}
    left, right = privacy_curves(curves).axes
    for line, (label, curve) in zip(left.lines, curves.items(), strict=True):
        epsilon, delta = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        np.testing.assert_array_equal(delta, curve.delta(epsilon).upper)
        assert line.get_label() == label
    for line, curve in zip(right.lines, curves.values(), strict=False):
        rates, power = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert (power >= rates).all()
        assert power[0] == curve.true_positive_rate(rates[0])


def test_one_sided_and_empty_curves_can_be_drawn(tmp_path: Path) -> None:
    rdp = privacy_curve(Repeated(Gaussian(5.0), 3), method="rdp")
    nothing = privacy_curve(Composed(), method="gdp")
    save(privacy_curves({"rdp": rdp, "nothing": nothing}), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [0, 8])
def test_too_few_or_too_many(count: int) -> None:
    curve = privacy_curve(Gaussian(1.0), method="gdp")
    with pytest.raises(InputError, match="1 to 7"):
        privacy_curves({str(i): curve for i in range(count)})
