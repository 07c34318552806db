"""Views: of one record alone, in a fixed order, and turned as far as they say."""

import numpy as np

from apiece.recipes.features import make_views, turn_images

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 2, 9, 9), dtype=np.uint8)


def test_quarter_turns_are_exact() -> None:
    for quarters in (1, 2, 3):
        expected = np.rot90(PIXELS, quarters, axes=(2, 3))
        assert np.array_equal(turn_images(PIXELS, 90 * quarters), expected)
    assert np.array_equal(turn_images(turn_images(PIXELS, 90), -90), PIXELS)


def test_a_small_turn_stays_in_range_and_moves_little() -> None:
    flat = np.full((1, 1, 9, 9), 200, np.uint8)
    assert np.array_equal(turn_images(flat, 12), flat)
    dot = np.zeros((1, 1, 9, 9), np.uint8)
    dot[0, 0, 4, 8] = 255
    up = turn_images(dot, 12)
    assert up[0, 0, :4].sum() > 0
    assert up[0, 0, 5:].sum() == 0


def test_views_are_the_image_and_each_of_its_variants_once() -> None:
    assert [view.shape for view in make_views(PIXELS)] == [PIXELS.shape]
    both = make_views(PIXELS, mirrored=True)
    assert np.array_equal(both[1], PIXELS[..., ::-1])
    six = make_views(PIXELS, mirrored=True, turn=12)
    assert len(six) == 6
    assert np.array_equal(six[0], PIXELS)
    assert np.array_equal(six[1], turn_images(PIXELS, -12))
    assert np.array_equal(six[5], turn_images(PIXELS, 12)[..., ::-1])


def test_views_are_of_one_record_alone() -> None:
    changed = PIXELS.copy()
    changed[0] = 255 - changed[0]
    for before, after in zip(make_views(PIXELS, turn=7), make_views(changed, turn=7), strict=True):
        assert np.array_equal(before[1:], after[1:])
