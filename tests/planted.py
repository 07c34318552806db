"""Faults planted by hand: a function with a changed line of source, wherever it is used."""

import __future__

import inspect
import re
import sys
import textwrap
from typing import Any

import pytest


def plant(monkeypatch: pytest.MonkeyPatch, target: Any, old: str, new: str) -> None:
    """Put `target`, a function or a method, with `new` for `old` in its source.

    It must hold `old`: a plant that does not grow proves nothing.
    """
    plain = inspect.unwrap(target)  # of what a run of mutants put around it
    source = textwrap.dedent(inspect.getsource(plain))
    source = re.sub(r"\A@_mutmut.*\n", "", source)
    assert old in source, f"{target.__qualname__} has no {old!r} any more"
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {}
    code = compile(source.replace(old, new), "planted", "exec", flags, dont_inherit=True)
    exec(code, plain.__globals__, made)
    *classes, name = target.__qualname__.split(".")
    if classes:
        owner = getattr(sys.modules[target.__module__], classes[0])
        monkeypatch.setattr(owner, name, made[name])
        return
    modules = [m for n, m in sys.modules.items() if n.startswith(("apiece.", "tests."))]
    for module in modules:
        for key, value in list(vars(module).items()):
            if value is target:
                monkeypatch.setattr(module, key, made[name])
