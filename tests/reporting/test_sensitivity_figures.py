"""Figures of partial sensitivities show the values they were given, and are written whole."""

import numpy as np
import pytest

from apiece.errors import DataError
from apiece.reporting.plots import partial_sensitivity_surface, save
from apiece.sensitivity.partial import PartialSensitivity
from refusals import refused
from research.experiments import mueller_2021_bars as bars


def grid(width, height, attributes=("a", "b")):
    raw = np.arange(2.0 * width * height).reshape(-1, 2) - 5
    norms = np.ones(len(raw))
    return PartialSensitivity(raw, norms, norms == 0, "attribute_change", attributes)


def test_surface_and_contour_for_both_attributes():
    a, b = np.linspace(0, 1, 4), np.linspace(0, 2, 3)
    figure = partial_sensitivity_surface(a, b, grid(4, 3))
    panels = [ax for ax in figure.axes if ax.get_xlabel() == "a"]
    assert len(panels) == 4
    assert [ax.name for ax in panels].count("3d") == 2
    limits = {c.get_clim() for ax in panels for c in ax.collections if c.get_array() is not None}
    assert (-18.0, 18.0) in limits  # both attributes on one scale


def test_surface_refuses_other_shapes():
    a, b = np.linspace(0, 1, 4), np.linspace(0, 2, 3)
    with refused(DataError, "two"):
        partial_sensitivity_surface(a, b, grid(4, 3, None))
    with pytest.raises(DataError, match="grid point"):
        partial_sensitivity_surface(a, b, grid(4, 4))


def test_maps_show_the_values_on_a_signed_scale():
    values = np.array([[1.0, -3.0], [0.0, 2.0]])
    figure = bars.maps_figure({"SGD": {"x": values, "y": values / 3}})
    images = [ax.images[0] for ax in figure.axes if ax.images]
    np.testing.assert_array_equal(images[0].get_array(), values)
    assert [image.get_clim() for image in images] == [(-3, 3), (-3, 3)]


def test_all_zero_maps_draw():
    figure = bars.maps_figure({"SGD": {"x": np.zeros((2, 2))}})
    low, high = next(ax.images[0] for ax in figure.axes if ax.images).get_clim()
    assert -np.inf < low < high < np.inf


def test_histograms_are_shares_of_records():
    edges = np.linspace(-1, 1, 5)
    counts = {"SGD": np.ones((2, 3, 4), int), "DP-SGD": np.full((2, 3, 4), 5)}
    figure = bars.histograms_figure(edges, counts)
    panels = figure.axes
    assert len(panels) == 6
    for ax in panels:
        assert len(ax.patches) == 2
        for patch in ax.patches:
            np.testing.assert_allclose(patch.get_data().values, 0.25)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SGD", "DP-SGD"]


def test_save_writes_whole_files_of_known_kinds(tmp_path):
    figure = bars.maps_figure({"SGD": {"x": np.eye(2)}})
    save(figure, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with refused(DataError, "png"):
        save(figure, tmp_path / "map.exe")
    with refused(DataError, "written"):
        save(figure, tmp_path / "map.png" / "map.png")
    assert [p.name for p in tmp_path.iterdir()] == ["map.png"]
