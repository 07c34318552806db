"""Each page in a browser: no console message, no request, and nothing wider than a phone.

Needs Chromium; whatever it asks of any network goes to a proxy here, which writes it down.
"""

import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from apiece import report
from apiece.audit import Findings, lower_bound, roc_by_group
from apiece.jobs.trained import Accuracies, Interval, Level
from sample_runs import sample_plan, sample_run

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser")) if p), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
WORDS = """--headless --no-sandbox --disable-gpu --no-first-run --disable-sync --no-pings
--disable-background-networking --disable-component-update --disable-default-apps
--disable-extensions --disable-client-side-phishing-detection --metrics-recording-only
--enable-logging=stderr --window-size=500,900 --dump-dom"""
QUIET = WORDS.split()
# Of the browser itself, whatever the page: its clock, its updates, its account.
OWN = {"clients2.google.com", "update.googleapis.com", "accounts.google.com", "www.google.com"}


SUBJECTS = ("run", "plan", "findings")
EDITIONS = ("internal", "public")


@cache
def pages() -> dict[str, str]:
    random = np.random.default_rng(0)
    half = Interval(0.5, 0.4, 0.6)
    tested = Accuracies(
        half, (half, half), ((0.5, 0.5), (0.2, 0.8)), (half, half), ((1, 0.4), (2, 0.5))
    )
    run = replace(
        sample_run(), tested=tested, purpose="to see", finished="2026-01-31",
        levels=(Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3)),
    )  # fmt: skip
    scores, truth = random.normal(size=100), np.arange(100) % 2 == 0
    found = Findings(
        audit="one run", bounds=(lower_bound(scores, scores, delta=1e-5),),
        rocs=roc_by_group(scores, truth, np.full(100, "a")),
    )  # fmt: skip
    subjects = dict(zip(SUBJECTS, (run, sample_plan("scale"), found), strict=True))
    return {
        f"{name}, {edition}": report(value, edition=edition).html
        for name, value in subjects.items()
        for edition in EDITIONS
    }


class Wanted(socketserver.StreamRequestHandler):
    """A proxy that serves nothing and keeps the first line of what is asked."""

    asked: list[str]

    def handle(self) -> None:
        self.asked.append(self.rfile.readline().decode("latin-1").strip())


@pytest.fixture(scope="module")
def proxy() -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []
    kind = type("Kept", (Wanted,), {"asked": asked})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1], asked
        server.shutdown()
        thread.join()


def opened(html: str, folder: Path, proxy: tuple[int, list[str]]) -> tuple[list[str], list[str]]:
    """Return the console's messages and the hosts that a page asks, but for the browser's own."""
    port, asked = proxy
    del asked[:]
    (folder / "page.html").write_text(html)
    place = [f"--proxy-server=127.0.0.1:{port}", "--proxy-bypass-list=<-loopback>"]
    done = subprocess.run(
        [str(CHROMIUM), *QUIET, *place, f"--user-data-dir={folder / 'profile'}",
         (folder / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "</html>" in done.stdout
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    hosts = [urlsplit(line.split(" ")[1]) for line in asked if " " in line]
    found = {host.netloc or host.scheme or host.path for host in hosts}
    return said, sorted(found - OWN)


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_page_asks_for_nothing_and_says_nothing(
    subject: str, edition: str, tmp_path: Path, proxy: tuple[int, list[str]]
) -> None:
    said, asked = opened(pages()[f"{subject}, {edition}"], tmp_path, proxy)
    assert said == []
    assert asked == []


@pytest.mark.parametrize(
    "mistake",
    [
        '<img src="http://example.test/a.png">',
        '<link rel="stylesheet" href="https://example.test/a.css">',
        "<style>body { background: url(http://example.test/b.png) }</style>",
        '<script>console.error("x")</script>',
        "<script>unknown()</script>",
    ],
)
def test_a_page_that_does_is_seen(
    mistake: str, tmp_path: Path, proxy: tuple[int, list[str]]
) -> None:
    page = pages()["run, public"].replace("</main>", mistake + "</main>")
    said, asked = opened(page, tmp_path, proxy)
    assert any("example.test" in line for line in asked) == ("example" in mistake)
    assert bool(said) == ("script" in mistake)
