"""Several processes, one mechanism: records are shared out, sums added up, noise drawn once.

Parameters that `fully_shard` has spread over the processes are whole in each while gradients are
clipped: a record's norm is taken over all parameters together. They are gathered once a step,
before any record is seen; sums, noisy updates and what the optimizer remembers are sharded as the
parameters are.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from apiece._types import State
from apiece.errors import UnsupportedError
from apiece.training.clipping import ClippedSum, guards
from apiece.training.identity import bytes_of
from apiece.training.randomness import part_of


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's place among `world` that train one model; (0, 1) is a single process.

    sharded: the model, where its parameters are spread over the processes.
    """

    rank: int
    world: int
    sharded: FullySharded | None = None

    @classmethod
    def current(cls, model: nn.Module) -> Processes:
        """Return the place in torch.distributed's default group, if there is one."""
        rank, world = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        if not any(guards.is_sharded(p) for p in model.parameters()):
            return cls(rank, world)
        return cls(rank, world, FullySharded(model, world))

    @property
    def shard(self) -> tuple[int, int]:
        """The records of this process: positions equal to rank modulo world."""
        return self.rank, self.world

    def share_key(self, key: bytes) -> bytes:
        """Return the key of process 0."""
        if self.world == 1:
            return key
        box = torch.tensor(list(key), dtype=torch.uint8, device=_device())
        dist.broadcast(box, src=0)
        return bytes(box.tolist())

    def share_parameters(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the parameters of process 0 to all; each shard is its process's own."""
        if self.world > 1:
            for tensor in (t for t in tensors if not guards.is_sharded(t)):
                there = tensor.detach().to(_device(tensor))
                dist.broadcast(there, src=0)
                tensor.detach().copy_(there)

    def gather(self, clipped: ClippedSum) -> ClippedSum:
        """Return in process 0 the sum over the records of all processes, elsewhere `clipped`.

        Of what is sharded every process gets its part of that sum.
        """
        if self.sharded is not None:
            return self.sharded.scatter(clipped)
        if self.world == 1:
            return clipped
        flat = _flat(clipped.gradients)
        dist.reduce(flat, dst=0)
        return clipped if self.rank else replace(clipped, gradients=_split(flat, clipped.gradients))

    def share(self, noisy: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values of process 0; of the others' only shapes and types count."""
        if self.sharded is not None:
            for value in noisy.values():
                if not guards.is_sharded(value):
                    dist.broadcast(value, src=0)
        elif self.world > 1:
            flat = _flat(noisy)
            dist.broadcast(flat, src=0)
            return _split(flat, noisy)
        return dict(noisy)

    @property
    def adds_noise(self) -> bool:
        """Whether this process does: process 0 alone, or each to its part of the parameters."""
        return self.rank == 0 or self.sharded is not None

    def whole(self) -> AbstractContextManager[None]:
        """Let the model have whole parameters meanwhile."""
        return contextlib.nullcontext() if self.sharded is None else self.sharded.whole()

    def settle(self) -> None:
        """Let every parameter be sharded that is."""
        if self.sharded is not None:
            self.sharded.settle()

    def noted(self, update: Mapping[str, torch.Tensor]) -> Iterable[torch.Tensor]:
        """Return what a journal notes of an update that is the same in all processes."""
        return update.values() if self.sharded is None else self.sharded.digests(update)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            met = torch.zeros(1, device=_device())
            dist.all_reduce(met)
            met.item()  # a collective on a GPU is only begun until its result is read


def _device(tensor: torch.Tensor | None = None) -> torch.device:
    """Return where a collective can be given `tensor`: nccl takes the current GPU's memory only."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if tensor is None else tensor.device


def _flat(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    flat = torch.cat([value.flatten() for value in values.values()])
    return flat.to(_device(flat))


def _split(flat: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {
        name: part.view(value.shape).to(value.device, value.dtype)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }


class FullySharded:
    """A model with parameters that `fully_shard` has spread over all processes.

    Raises `UnsupportedError` for parameters sharded otherwise (tensor parallelism, a mesh of
    several dimensions or of some processes), and for mixed precision of `fully_shard`'s own.
    """

    def __init__(self, model: nn.Module, world: int) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self._model = model
        self._wrapped = [m for m in model.modules() if isinstance(m, FSDPModule)]
        self.settle()
        managed = {id(p) for m in self._wrapped for p in m.parameters()}
        every: dict[str, Any] = dict(model.named_parameters())
        for name, p in every.items():
            if not guards.is_sharded(p):
                continue
            mesh, places = p.device_mesh, p.placements
            if id(p) not in managed or mesh.ndim != 1 or mesh.size() != world:
                raise UnsupportedError(
                    f"model.{name}: is sharded as {places} over {mesh.size()} of {world} "
                    "processes; a record's norm needs whole parameters: use fully_shard alone, "
                    "over one mesh of all processes, or DistributedDataParallel"
                )
        for module in self._wrapped:
            state = fully_shard.state(module)  # type: ignore[attr-defined]
            policy = getattr(state, "_mp_policy", None)
            if policy is not None and (policy.param_dtype or policy.output_dtype):
                raise UnsupportedError(
                    f"model: fully_shard with {policy}; records are clipped with the parameters "
                    "as they are: leave mp_policy out, and use torch.autocast in the forward"
                )

    def settle(self) -> None:
        """Let go of what a forward outside of training left gathered."""
        for module in self._wrapped:
            module.reshard()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Let the model be an ordinary one meanwhile, with whole parameters and no collectives.

        All processes must enter together; what they do inside is up to each.
        """
        copies: dict[int, nn.Parameter] = {}
        with contextlib.ExitStack() as undo, torch.no_grad():
            for module in self._model.modules():
                for name, p in module._parameters.items():
                    if p is None or not guards.is_sharded(p):
                        continue
                    if id(p) not in copies:
                        copies[id(p)] = nn.Parameter(gathered(p), p.requires_grad)
                    undo.callback(module._parameters.__setitem__, name, p)
                    module._parameters[name] = copies[id(p)]
            for module in self._wrapped:
                _unwrap(module, undo)
            with torch.enable_grad():
                yield

    def scatter(self, clipped: ClippedSum) -> ClippedSum:
        """Return the sum over the records of all processes, sharded as the parameters are.

        Parameters that are not sharded have it in process 0 only.
        """
        from torch.distributed.tensor import DTensor, Partial

        named: dict[str, Any] = dict(self._model.named_parameters())
        sums: dict[str, torch.Tensor] = {}
        for name, value in clipped.gradients.items():
            p = named[name]
            if guards.is_sharded(p):
                parts = DTensor.from_local(value, p.device_mesh, [Partial()], run_check=False)
                sums[name] = parts.redistribute(placements=p.placements)
            else:
                sums[name] = value.clone()
                dist.reduce(sums[name], dst=0)
        return replace(clipped, gradients=sums)

    def digests(self, update: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return a digest of each process's part of an update, in every process."""
        digest = hashlib.blake2b()
        for value in update.values():
            digest.update(bytes_of(value.to_local() if guards.is_sharded(value) else value))
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        device = next(iter(update.values())).device
        every = [torch.empty_like(own, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own.to(device))
        return every


def _unwrap(module: nn.Module, undo: contextlib.ExitStack) -> None:
    """Take `fully_shard`'s class and hooks off a module until `undo` is closed."""
    undo.callback(setattr, module, "__class__", type(module))
    module.__class__ = type(module).__bases__[1]  # FSDPModule goes before the module's own
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = getattr(module, kind)
        undo.callback(setattr, module, kind, hooks)
        own = {
            key: hook
            for key, hook in hooks.items()
            if not str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")
        }
        setattr(module, kind, OrderedDict(own))


def gathered(tree: Any) -> Any:
    """Return a state dict with what is sharded in it whole; all processes must call it together."""
    if isinstance(tree, dict):
        whole = copy.copy(tree)  # with what torch notes on it
        whole.update({key: gathered(value) for key, value in tree.items()})
        return whole
    return tree.full_tensor() if guards.is_sharded(tree) else tree


def spread(state: State, like: Mapping[str, torch.Tensor]) -> State:
    """Return whole tensors by name as parts, where those of `like` are sharded."""
    parts = copy.copy(state)
    parts.update({n: part_of(t, like[n]) for n, t in state.items() if n in like})
    return parts


def spread_updates(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> State:
    """Return what `Updates` kept with the optimizer's memory sharded as its parameters are."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    memories = {
        place: {
            key: part_of(value, own[place]) if isinstance(value, torch.Tensor) else value
            for key, value in memory.items()
        }
        for place, memory in state["optimizer"]["state"].items()
        if place < len(own)
    }
    return {**state, "optimizer": {**state["optimizer"], "state": memories}}
