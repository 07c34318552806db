"""Tables, figures and benchmarks behind the pages of results: in the repository, in no package."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "research" / "experiments"
# One JSON file an experiment or a benchmark.
RESULTS = ROOT / "research" / "results"
