"""Report: one page, written whole; the same run gives the same page."""

import html
import re
from pathlib import Path

import pytest

from apiece.errors import DataError
from apiece.reporting import Report, report
from sample_runs import sample_plan, sample_run


def test_a_report_is_the_same_twice_and_is_saved_whole(tmp_path: Path) -> None:
    made = report(sample_run())
    assert made == report(sample_run())
    assert made.save(tmp_path / "r.html").read_text() == made.html
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert made.html not in repr(made)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be written"):
        Report("page").save(tmp_path / "file" / "r.html")


def test_a_report_in_a_notebook_is_a_frame_with_the_very_page() -> None:
    """Its styles stay in it; what the frame shows is the page, to the byte."""
    page = report(sample_plan("scale"))
    shown = page._repr_html_()
    (source,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(source) == str(page.html)
    assert "<style>" not in shown
    assert shown.startswith("<iframe")
    assert "allow-same-origin" not in shown
