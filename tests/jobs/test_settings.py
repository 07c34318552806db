"""Settings of a job: read one way from everywhere, checked, frozen, and written back."""

from dataclasses import dataclass

import pytest

from apiece import _check
from apiece._json import plain
from apiece.errors import InputError, OptionError
from apiece.jobs import settings as of
from apiece.jobs.settings import Share, check, setting, settings_of
from apiece.plan import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part with one of each kind."""

    size: int = setting(required=True)
    share: float = setting(read=of.read_below_one, value=0.2)
    name: str | None = setting()
    secret: str | None = setting(secret=True)

    def __post_init__(self) -> None:
        check(self)


def test_settings_are_checked_and_frozen_in_their_order() -> None:
    part = Part(size=3, secret="word")
    assert [name for name, _ in settings_of(part)] == ["size", "share", "name", "secret"]
    assert (part.size, part.share, part.name) == (3, 0.2, None)
    assert "word" not in repr(part)
    with pytest.raises(InputError, match="size = 0"):
        Part(size=0)
    with pytest.raises(InputError, match="name = 7: must be a text"):
        Part(size=1, name=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (of.read_delta, "column", "column"),
        (of.read_delta, 1e-5, 1e-5),
        (of.list_reader(_check.count), [8, 4], (8, 4)),
        (of.read_row_limit, "all", "all"),
        (of.read_row_limit, 3, 3),
        (of.read_natural, 0, 0),
        (of.list_reader(of.read_strategy), ["scale", "sample"], ("scale", "sample")),
        (of.read_schedule, {"points": [[0, 1], [9, 2]]}, Schedule(((0, 1.0), (9, 2.0)))),
        (
            of.read_shares,
            [{"name": "a", "epsilon": 1.0, "share": 0.5}],
            (Share("a", 1.0, 0.5),),
        ),
    ],
)
def test_readers(read: of.Reader, value: object, found: object) -> None:
    assert read("x", value) == found
    assert read("x", plain(found) if not isinstance(found, str) else found) == found


@pytest.mark.parametrize(
    ("read", "value", "error"),
    [
        (of.read_below_one, 1.0, InputError),
        (of.read_delta, 1.0, InputError),
        (of.read_delta, float("nan"), InputError),
        (of.read_natural, -1, InputError),
        (of.list_reader(_check.count), [0], InputError),
        (of.read_row_limit, "some", InputError),
        (of.read_strategy, "scal", OptionError),
        (of.read_schedule, {"between": "hold"}, InputError),
        (of.read_schedule, {"points": [[1, 1], [0, 1]]}, InputError),
        (of.read_shares, [{"name": "a"}], InputError),
    ],
)
def test_bad_values_are_refused(read: of.Reader, value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        read("x", value)
