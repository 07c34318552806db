"""A library is what lies where libraries lie; a user's package of the same name is watched."""

import collections
import enum
import functools
import importlib
import importlib.util
import logging
import os
import queue
import random
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import alone, libraries
from apiece.training.clipping.libraries import PYTHON, is_of_a_library, library_named, library_of

SIZE = 5
CODE = """
SCALE = 1.0
SEEN = []

class Holds:
    scale = 1.0

def scaled(x):
    return x * SCALE * Holds.scale

def leave(x):
    SEEN.append(float(x.detach().sum()))
    return x * (1 + len(SEEN))
"""


def from_a_file(folder, name):
    """A module of the working folder."""
    (folder / f"{name}.py").write_text(CODE)
    return importlib.import_module(name)


def from_a_package(folder, name):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("from .inner import scaled, leave")
    (folder / name / "inner.py").write_text(CODE)
    importlib.import_module(name)
    return sys.modules[f"{name}.inner"]


def from_a_namespace(folder, name):
    """A folder without __init__.py."""
    (folder / name).mkdir()
    (folder / name / "inner.py").write_text(CODE)
    return importlib.import_module(f"{name}.inner")


def from_a_zip(folder, name):
    with zipfile.ZipFile(folder / "all.zip", "w") as file:
        file.writestr(f"{name}.py", CODE)
    sys.path.insert(0, str(folder / "all.zip"))
    return importlib.import_module(name)


def made_by_hand(folder, name):
    """A module made by hand, which says that its file is a library's."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = queue.__file__
    exec(CODE, vars(module))
    return module


def made_by_a_spec(folder, name):
    """A module made of a library's spec, whose code is somebody else's."""
    spec = importlib.util.spec_from_file_location(name, queue.__file__)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(compile(CODE, str(folder / "mine.py"), "exec"), vars(module))
    return module


def installed_in_place(folder, name):
    """A link in site-packages that leads to somebody's folder."""
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").write_text(CODE)
    (folder / "site").mkdir()
    (folder / "site" / name).symlink_to(folder / "mine")
    sys.path.insert(0, str(folder / "site"))
    return importlib.import_module(name)


WAYS = [from_a_file, from_a_package, from_a_namespace, from_a_zip, made_by_hand, made_by_a_spec,
        installed_in_place]  # fmt: skip
NAMES = ["datasets", "code", "timm"]  # of a library, of Python, of one that is not installed


@pytest.fixture
def _a_path_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(libraries, "_SITES", (tmp_path / "site", *libraries._SITES))
    libraries.library_of.cache_clear()
    hidden = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in NAMES}
    for name in hidden:
        del sys.modules[name]
    importlib.invalidate_caches()
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] in NAMES]:
        del sys.modules[name]
    sys.modules.update(hidden)
    libraries.library_of.cache_clear()


def squares(out, y):
    return (out - y.unsqueeze(1)).square().sum(1)


class Through(nn.Module):
    """A layer whose outputs go through somebody's function."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.functions = nn.Linear(3, 2), (function,)

    def forward(self, x):
        return self.functions[0](self.layer(x))


@pytest.mark.usefixtures("_a_path_of_its_own")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_user_s_package_is_a_user_s_whatever_its_name(way, name, tmp_path):
    if way is from_a_namespace and name == "code":
        pytest.skip("a module of Python's goes before a folder without __init__.py")
    module = way(tmp_path, name)
    for value in (module.scaled, module.Holds):
        assert not is_of_a_library(value), value
    if way is not made_by_a_spec or name != "code":
        assert not is_of_a_library(module)


@pytest.mark.usefixtures("_a_path_of_its_own")
@pytest.mark.parametrize("way", [from_a_file, from_a_namespace, made_by_hand, made_by_a_spec])
def test_what_its_code_reads_is_watched(way, tmp_path):
    module = way(tmp_path, "datasets")
    torch.manual_seed(0)
    model, x, y = Through(module.scaled), torch.randn(SIZE, 3), torch.zeros(SIZE)
    for holder, name in ((module, "SCALE"), (module.Holds, "scale")):
        setattr(holder, name, getattr(holder, name) * 3.0)
        found = clip_and_sum(model, squares, x, y, 1e6, method="proved")
        wanted = torch.autograd.grad(squares(model(x), y).sum(), model.layer.bias)[0]
        torch.testing.assert_close(found.gradients["layer.bias"], wanted)


@pytest.mark.usefixtures("_a_path_of_its_own")
@pytest.mark.parametrize("way", [from_a_file, from_a_package, from_a_zip, made_by_hand])
def test_what_it_keeps_of_a_record_is_seen(way, tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "why_not_isolated", lambda _batch: "a test says so")
    module = way(tmp_path, "datasets")
    model, x, y = Through(module.leave), torch.randn(SIZE, 3), torch.zeros(SIZE)
    with pytest.raises(UnsupportedError, match="changes something outside"):
        clip_and_sum(model, squares, x, y, 0.1, method="alone")


def says_it_is_torch_s(value):
    value.__module__ = "torch.nn.functional"
    return value


@says_it_is_torch_s
class Pretends:
    held = None

    def work(self):
        return self.held


@says_it_is_torch_s
class HoldsOnly:
    held = None


@says_it_is_torch_s
def pretending(x):
    return x * Pretends.held


def test_a_name_of_a_module_can_be_written_by_anybody():
    assert not any(map(is_of_a_library, (Pretends, HoldsOnly, pretending, HoldsOnly())))


LIBRARIES = {
    "torch": [nn, nn.Linear, nn.functional.linear, torch._C, torch.relu, torch.Tensor.relu,
              torch.ops.aten, torch.distributions.Normal, torch.optim.SGD, torch.Generator],
    "numpy": [np, np.mean, np.ndarray, np.random.Generator, np.random.default_rng],
    PYTHON: [os, sys, os.path, queue, queue.Queue, random.Random.random, functools.partial, len,
             logging.Logger, collections.OrderedDict, enum.Enum.__init_subclass__, dict, object,
             type(iter([])), types.FunctionType, functools.lru_cache(max), importlib.import_module],
    "apiece": [clip_and_sum, alone, libraries.library_of],
    "pytest": [pytest],
    "_pytest": [pytest.raises],
}  # fmt: skip


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_are_known(name):
    assert [library_named(value) for value in LIBRARIES[name]] == [name] * len(LIBRARIES[name])
    assert all(map(is_of_a_library, LIBRARIES[name]))


def test_a_module_that_is_an_instance_of_its_own_class_leads_to_no_circle(monkeypatch):
    # as torch._VF and huggingface_hub.utils are
    class Replaced(types.ModuleType):
        pass

    Replaced.__module__ = "replaced_module"
    module = Replaced("replaced_module")
    monkeypatch.setitem(sys.modules, "replaced_module", module)
    assert library_named(module) is None
    assert library_named(Replaced) is None
    assert library_named(torch._VF) is None


def test_a_file_in_the_standard_library_s_folder_of_packages_is_none_of_python_s():
    standard = libraries._STANDARD[-1]
    assert library_of(str(standard / "queue.py")) == PYTHON
    assert library_of(str(standard / "site-packages" / "queue.py")) != PYTHON
    assert library_of(str(Path(f"{standard}-mine") / "queue.py")) is None
    assert library_of("queue.py") is None
