"""Time of one private step beside non-private PyTorch, Opacus, torch.func and JAX, interleaved.

Contenders take turns in every round, in random order, so that whatever else the machine does hits
all of them; figures are medians over rounds and ratios in the same round, of the clock's time and
of the processor's: to the fastest step of non-private PyTorch (as it is, in channels last,
compiled, with a fused optimizer) and to the usual one. The slow ones have two or three rounds
beside non-private PyTorch, then the quick ones have theirs. Each number of threads has a process of
its own, bound to as many cores. Peak memory is that of one step of one contender in a fresh
process, above what the process held before: the median of several steps after the first ones, in
which a model is captured. The total is that of a run's first steps from the first call on, each run
in a fresh process, plain and private in turn: the ratio of each pair's times, by the clock and by
the processor, their median, the least and the largest. Of these runs is the longest single step
after the first, in median steps of its run: the least over the runs, since others on the machine
can only lengthen it. With `--before SRC` the engine of another checkout takes its turns too.

    python -m research.benchmarks.training --out research/results/training.json     # 12 minutes

Contenders whose library is missing are left out, and the result says so.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

SECONDS = {"mnist-cnn": 8.0, "cifar-cnn": 12.0, "mlp": 4.0}  # of the quick contenders
MODELS = list(SECONDS)
TOTALS = {"mnist-cnn": (1, 30, 200), "cifar-cnn": (1, 30), "mlp": (1, 30, 200, 1500)}  # steps
NEEDS = {"opacus, hooks": "opacus", "opacus, ghost": "opacus", "jax, compiled": "jax"}
MEMORY = ["pytorch, not private", "apiece", "opacus, ghost"]
BASE = "pytorch, not private"
WARM = 2  # the first one captures the model
PLAIN = {
    BASE,
    f"{BASE}, fused",
    f"{BASE}, compiled, fused",
    f"{BASE}, channels last",
    f"{BASE}, channels last, compiled",
}
QUICK = PLAIN | {
    "floor",
    "apiece",
    "apiece, channels last",
    "apiece, compiled",
    "apiece, release noise",
}


def bind(threads: int) -> None:
    """Give this process `threads` cores, before torch and JAX start their threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def present(names: list[str]) -> list[str]:
    """Return the contenders whose library is here."""
    return [n for n in names if n not in NEEDS or importlib.util.find_spec(NEEDS[n])]


def prepared(name: str, who: str) -> tuple[Callable[[], None], int]:
    """Return one contender's step and the batch size."""
    import torch

    from research.benchmarks.training_contenders import CONTENDERS
    from research.benchmarks.training_contenders import MODELS as MADE

    make, shape, classes, size = MADE[name]
    torch.manual_seed(0)
    x, y = torch.randn(size, *shape), torch.randint(0, classes, (size,))
    return CONTENDERS[who](make, x, y), size


class Taken(NamedTuple):
    """Seconds of something, by the clock and by the processor."""

    clock: float
    processor: float


def timed(work: Callable[[], object], repeat: int = 1) -> Taken:
    """Return the seconds of one of `repeat` times."""
    clock = time.perf_counter()
    processor = time.process_time()
    for _ in range(repeat):
        work()
    processor = time.process_time() - processor
    clock = time.perf_counter() - clock
    return Taken(clock / repeat, processor / repeat)


def take_turns(
    steps: dict[str, Callable[[], None]], rounds: int, seconds: float, repeat: int
) -> dict[str, list[Taken]]:
    """Return the times of a step, round by round: so many at least, and until the time is up."""
    times: dict[str, list[Taken]] = {who: [] for who in steps}
    turns = random.Random(0)
    order = list(steps)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[BASE]) < rounds:
        turns.shuffle(order)
        for who in order:
            times[who].append(timed(steps[who], repeat))
    return times


def rated(times: dict[str, list[Taken]]) -> dict[str, object]:
    """Return medians, and ratios to the fastest plain step and the usual one of the same round."""
    clock = {who: [taken.clock for taken in took] for who, took in times.items()}
    processor = {who: [taken.processor for taken in took] for who, took in times.items()}
    fastest = min(PLAIN & times.keys(), key=lambda who: statistics.median(clock[who]))
    return {
        who: {
            "milliseconds": round(statistics.median(clock[who]) * 1e3, 3),
            "to_the_fastest": ratio(clock[who], clock[fastest]),
            "to_the_usual": ratio(clock[who], clock[BASE]),
            "best_to_the_fastest": round(min(clock[who]) / min(clock[fastest]), 3),
            "processor_milliseconds": round(statistics.median(processor[who]) * 1e3, 3),
            "processor_to_the_usual": ratio(processor[who], processor[BASE]),
            "rounds": len(times[who]),
        }
        for who in times
    }


def ratio(some: list[float], base: list[float]) -> float:
    """Return the median over rounds of the ratio."""
    return round(statistics.median(a / b for a, b in zip(some, base, strict=True)), 3)


def measure(name: str, contenders: list[str], seconds: float) -> dict[str, object]:
    """Return medians and ratios of one model."""
    steps, failed, size = {}, {}, 0
    for who in contenders:
        try:
            step, size = prepared(name, who)
            few = 1 if name == "cifar-cnn" else 3
            for _ in range(WARM if who.startswith("apiece") else few):
                step()
            steps[who] = step
        except Exception as error:  # a contender that cannot run this model is named, not hidden
            failed[who] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    repeat = 10 if name == "mlp" else 1
    slow = {who: step for who, step in steps.items() if who in PLAIN or who not in QUICK}
    quick = {who: step for who, step in steps.items() if who in QUICK}
    rows = rated(take_turns(slow, 2 if name == "cifar-cnn" else 3, 0, repeat))
    rows |= rated(take_turns(quick, 3, seconds, repeat))
    return {"batch": size, "contenders": rows, "left_out": failed}


def totals(name: str, who: str) -> dict[str, object]:
    """Return the seconds of a run's steps from the first call on, and its longest later step."""
    step, _ = prepared(name, who)
    taken = [timed(step) for _ in range(TOTALS[name][-1])]
    found: dict[str, object] = {}
    for steps in TOTALS[name]:
        columns = zip(*taken[:steps], strict=True)
        found[str(steps)] = [sum(column) for column in columns]
    later = [one.clock for one in taken[1:]]
    found["longest"] = max(later) / statistics.median(later)
    return found


def total(name: str, pairs: int, threads: int, before: Path | None = None) -> dict[str, object]:
    """Return the ratios of total times to the usual plain step's, from runs in turn.

    before: the folder `src` of another checkout, whose engine is "apiece, before".
    """
    turns = random.Random(0)
    sources: dict[str, Path | None] = {BASE: None, "apiece": None}
    if before is not None:
        sources["apiece, before"] = before
    order = list(sources)
    runs: dict[str, list[dict[str, object]]] = {who: [] for who in order}
    for _ in range(pairs):
        turns.shuffle(order)
        for who in order:
            contender = who.removesuffix(", before")
            arguments = ("total", name, contender, str(threads), "0")
            runs[who].append(worker(*arguments, source=sources[who]))
    found: dict[str, object] = {}
    for who in order:
        if who == BASE:
            continue
        of_whom = found if who == "apiece" else found.setdefault(who, {})
        for steps in map(str, TOTALS[name]):
            times = [[run[steps] for run in runs[other]] for other in (BASE, who)]
            of_whom[steps] = {
                clock: compared(*([taken[k] for taken in took] for took in times))
                for k, clock in enumerate(Taken._fields)
            }
    found["longest later step, in median steps"] = {
        who: round(min(run["longest"] for run in some), 1) for who, some in runs.items()
    }
    return found


def compared(plain: list[float], ours: list[float]) -> dict[str, object]:
    """Return the ratios of pairs of runs, and the median seconds of both."""
    ratios = sorted(b / a for a, b in zip(plain, ours, strict=True))
    return {
        "to_the_usual": round(statistics.median(ratios), 3),
        "from": round(ratios[0], 3),
        "to": round(ratios[-1], 3),
        "seconds": [round(statistics.median(some), 3) for some in (plain, ours)],
    }


def peak(name: str, who: str) -> float:
    """Return the megabytes by which one step of a contender lifts this process at most."""
    step, _ = prepared(name, who)
    for _ in range(3):  # compiled kernels stay
        step()
    return statistics.median(_lifted(step) for _ in range(5))


def _lifted(step: Callable[[], None]) -> float:
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    held = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    step()
    return (_status("VmHWM") - held) / 1024


def _status(field: str) -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(field + ":"))


def machine() -> dict[str, object]:
    """Name the machine by its processor and the software by its versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((row.split(":")[1].strip() for row in lines if row.startswith("model name")), "")
    found = {name: version(name) for name in ("torch", "opacus", "jax") if _has(name)}
    cores = len(os.sched_getaffinity(0))
    return {"cpu": cpu, "cores": cores, "python": platform.python_version(), **found}


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def worker(*arguments: str, source: Path | None = None) -> dict[str, object]:
    """Run this file in a process of its own and return what it prints.

    source: the folder from which the package is imported there; None for this process's own.
    """
    command = [sys.executable, "-m", __spec__.name, "--worker", *arguments]
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(source.resolve()), str(Path.cwd())])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200]}
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def work(kind: str, name: str, rest: list[str], threads: int, seconds: float) -> None:
    """Be a worker: print one JSON document."""
    import warnings

    bind(threads)
    warnings.filterwarnings("ignore")
    if kind == "memory":
        print(json.dumps({"megabytes": round(peak(name, rest[0]), 1)}))
    elif kind == "total":
        print(json.dumps(totals(name, rest[0])))
    else:
        print(json.dumps(measure(name, rest, seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--contenders", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--scale", type=float, default=1.0, help="of the time spent on each model")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-steps", action="store_true", help="totals alone")
    parser.add_argument("--before", type=Path, help="src of a checkout whose totals are taken too")
    parser.add_argument("--pairs", type=int, default=5, help="of runs whose total time is taken")
    parser.add_argument("--note", help="About the machine or the run, kept in the result.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, name, *rest, threads, seconds = options.worker
        work(kind, name, rest, int(threads), float(seconds))
        return
    from research.benchmarks.training_contenders import CONTENDERS

    chosen = present(options.contenders or list(CONTENDERS))
    chosen = [BASE, *(who for who in chosen if who != BASE)]
    times = {
        str(threads): {
            name: worker("time", name, *chosen, str(threads), str(SECONDS[name] * options.scale))
            for name in options.models
        }
        for threads in ([] if options.no_steps else options.threads)
    }
    memory = {
        name: {who: worker("memory", name, who, "1", "0") for who in MEMORY if who in chosen}
        for name in ([] if options.no_memory else options.models)
    }
    info = machine()
    absent = sorted(set(NEEDS.values()) - set(info))
    if options.note:
        info["note"] = options.note
    whole = {
        str(threads): {
            name: total(name, options.pairs, threads, options.before) for name in options.models
        }
        for threads in (options.threads if options.pairs else [])
    }
    results = {
        "machine": info,
        "not_installed": absent,
        "threads": times,
        "memory": memory,
        "total": whole,
    }
    text = json.dumps(results, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
