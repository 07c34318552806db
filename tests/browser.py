"""Opens a page in Chromium, where it is installed: what it shows, what it complains of."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def opened(path: Path, *, width: int = 1200) -> tuple[str, list[str]]:
    """Return the document as it is after its scripts have run, and what the console says."""
    assert CHROMIUM is not None
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={path.parent / 'profile'}", f"--window-size={width},2000"]
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def loads(html: str) -> list[str]:
    """Return what a page would fetch from elsewhere."""
    return [
        found
        for found in re.findall(r"""(?:src|href|url|@import)\s*[=(]\s*["']?([^"')\s>]+)""", html)
        if not found.startswith(("#", "data:"))
    ]
