"""The machine that a result was measured on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any


def describe_machine() -> str:
    """Return the processor's model, threads and torch, without the host's name."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        for line in cpus.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return model
    return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__}"
