"""What a run keeps until it is done: for its owner alone, enough to go on, and then nothing."""

import stat
from pathlib import Path

import pytest
import torch

from apiece.errors import DataError, StateError
from apiece.jobs import read_job
from apiece.jobs.config import complete
from apiece.jobs.prepared import RunFolder, Unfinished, reopen

from .small import job


def begun(folder: Path, **more: object) -> Unfinished:
    """Begin a run in folder/run, as `run` does."""
    import tomli_w

    asked, out = job(folder, **more), folder / "run"
    kept = Unfinished.fresh(asked.run.seed, out)
    RunFolder(out).write("config.toml", tomli_w.dumps(complete(asked, out=out).to_dict()))
    kept.begin(asked.name)
    return kept


def test_coins_are_the_seed_or_new_ones_each_time(tmp_path: Path) -> None:
    assert Unfinished.fresh(7, tmp_path).coins == 7
    drawn = {Unfinished.fresh(None, tmp_path).coins for _ in range(20)}
    assert len(drawn) == 20
    assert max(drawn) > 2**100
    assert "coins" not in repr(Unfinished.fresh(None, tmp_path))


@pytest.mark.parametrize("seed", [None, 7])
def test_what_was_begun_is_gone_on_with(seed: int | None, tmp_path: Path) -> None:
    kept = begun(tmp_path, seed=seed)
    assert {stat.S_IMODE(p.stat().st_mode) for p in (kept.folder, kept.folder / "job.json")} == {
        0o700,
        0o600,
    }
    again, found = reopen(tmp_path / "run")
    assert (found.coins, found.folder) == (kept.coins, kept.folder)
    assert again.name == "small"
    assert again.run.out == str(tmp_path / "run")
    assert again.training == read_job(tmp_path / "run" / "config.toml").training
    assert "coins" not in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize("note", ["", "{}", '{"name": "x", "coins": "7"}', "\xff"])
def test_a_damaged_note_is_refused_in_one_line(note: str, tmp_path: Path) -> None:
    kept = begun(tmp_path)
    (kept.folder / "job.json").write_text(note, encoding="latin-1")
    with pytest.raises(DataError) as caught:
        reopen(tmp_path / "run")
    assert "job.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_checkpoints_are_counted_and_taken_away(tmp_path: Path) -> None:
    kept = begun(tmp_path)
    assert kept.count_steps() == 0
    for repeat, step in ((0, 5), (1, 2)):
        place = kept.model_folder("scale", repeat)
        place.mkdir()
        torch.save({"step": step}, place / "state.pt")
        (place / "key").write_bytes(b"k" * 32)
    assert kept.model_folder("scale", 1).name == "scale-2"
    assert kept.count_steps() == 7
    kept.clear()
    assert not kept.folder.exists()
    with pytest.raises(StateError, match="is no interrupted run"):
        reopen(tmp_path / "run")


def test_what_somebody_else_deleted_is_cleared_all_the_same(tmp_path: Path) -> None:
    """The results are written by then: the run is not to fail for what is gone already."""
    kept = begun(tmp_path)
    place = kept.model_folder("scale", 0)
    place.mkdir()
    (place / "key").write_bytes(b"k" * 32)
    (kept.folder / "job.json").unlink()
    kept.clear()
    assert not kept.folder.exists()


def test_a_clear_that_is_interrupted_leaves_no_run_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = begun(tmp_path)

    def stopped(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", stopped)
    with pytest.raises(KeyboardInterrupt):
        kept.clear()
    (tmp_path / "run" / "metrics.json").write_text("{}")
    with pytest.raises(StateError, match="was finished; --resume takes"):
        reopen(tmp_path / "run")
