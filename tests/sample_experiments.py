"""An experiment that counts how often it runs, and its folder."""

from pathlib import Path

TEXT = '''"""Half of a number."""

from research.experiment import Experiment, Table


def run(unit, place):
    place.work.mkdir(parents=True, exist_ok=True)
    log = place.work / "log"
    log.write_text((log.read_text() if log.exists() else "") + f"{unit['seed']} ")
    if (place.work / "stop").exists() and unit["seed"] == 1:
        raise KeyboardInterrupt
    return unit["seed"] / 2


EXPERIMENT = Experiment(
    name="half-a-number",
    paper="Nobody",
    shows="Table 0",
    cost="nothing",
    units=lambda seeds, scale: [{"seed": seed, "scale": scale} for seed in range(seeds)],
    run=run,
    tables=lambda done: [
        Table(["seed", "half"], [[str(one.unit["seed"]), str(one.result)] for one in done])
    ],
    notes=lambda done: f"{len(done)} halves.",
    seeds=3,
    needs=("there",),
)
'''


def folder(path: Path) -> Path:
    """Return `path` with the experiment, a helper, and data beside it."""
    (path / "experiments").mkdir()
    (path / "experiments" / "half_a_number.py").write_text(TEXT)
    (path / "experiments" / "helper.py").write_text("# EXPERIMENT = Experiment(\n")
    (path / "data" / "there").mkdir(parents=True)
    return path
