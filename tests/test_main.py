"""The command line by `python -m apiece`, where no script is on the path."""

import subprocess
import sys

from apiece import __version__


def test_it_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "apiece", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.split()[-1] == __version__
