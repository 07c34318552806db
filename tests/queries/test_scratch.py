"""Room on disk: private, another one for each process, gone however the process ends."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apiece.queries import reading

USER = """
import os, signal, sys
from apiece.queries import reading
folder = reading.make_folder_name()
folder.mkdir()
(folder / "rows").write_bytes(b"ann")
if sys.argv[1] == "forked" and os.fork() == 0:
    sys.exit()  # the child's exit is not its parent's
if sys.argv[1] == "forked":
    os.wait()
    assert (folder / "rows").exists()
print(folder.parent, flush=True)
if sys.argv[1] == "raises":
    raise SystemExit(3)
if sys.argv[1] in ("SIGKILL", "SIGTERM", "SIGINT"):
    sys.stdin.read()
"""


def test_a_folder_is_new_and_its_room_is_private() -> None:
    one, two = reading.make_folder_name(), reading.make_folder_name()
    assert one.parent == two.parent
    assert one != two
    assert not one.exists()
    assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("end", ["exit", "raises", "forked", "SIGKILL", "SIGTERM", "SIGINT"])
def test_nothing_is_left_however_the_process_ends(end: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", USER, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    room = Path(process.stdout.readline().strip())
    assert room.parent == tmp_path
    if end.startswith("SIG"):
        assert (room / next(room.iterdir()).name / "rows").read_bytes() == b"ann"
        os.killpg(process.pid, getattr(signal, end))
    process.communicate()
    until = time.monotonic() + 60
    while room.exists() and end.startswith("SIG"):
        assert time.monotonic() < until, "still there"
        time.sleep(0.02)
    assert not list(tmp_path.iterdir())
