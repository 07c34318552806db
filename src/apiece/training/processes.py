"""Several processes, one mechanism: records are sharded, sums added up, noise drawn once."""

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

from apiece.errors import UnsupportedError
from apiece.training.clipping import ClippedSum, guards


class FullySharded:
    """A model with parameters that `fully_shard` has spread over all processes.

    Args:
        model: Of which some parameters are sharded.
        world: Number of processes.

    Raises:
        UnsupportedError: For parameters sharded otherwise (tensor parallelism, a mesh of several
            dimensions or of some processes), and mixed precision of `fully_shard`'s own.
    """

    def __init__(self, model: nn.Module, world: int) -> None:
        from torch.distributed.fsdp import FSDPModule

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
            policy = getattr(_state_of(module), "_mp_policy", None)
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
        return ClippedSum(sums, clipped.norms, clipped.losses, clipped.clip_norms)

    def share(self, noisy: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `noisy`, in all with process 0's values of what is not sharded."""
        for value in noisy.values():
            if not guards.is_sharded(value):
                dist.broadcast(value, src=0)
        return dict(noisy)

    def digests(self, update: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return a digest of each process's part of an update, in every process."""
        digest = hashlib.blake2b()
        for value in update.values():
            part = value.to_local() if guards.is_sharded(value) else value
            flat = part.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        device = next(iter(update.values())).device
        found = [torch.empty_like(own, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own.to(device))
        return found


def gathered(tree: Any) -> Any:
    """Return a state dict with what is sharded in it whole; all processes must call it together."""
    if isinstance(tree, dict):
        found = copy.copy(tree)  # with what torch notes on it
        found.update({key: gathered(value) for key, value in tree.items()})
        return found
    return tree.full_tensor() if guards.is_sharded(tree) else tree


def spread(state: dict[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole tensors by name as parts, where those of `like` are sharded."""
    found = copy.copy(state)
    found.update({n: part_of(t, like[n]) for n, t in state.items() if n in like})
    return found


def spread_updates(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what `Updates` kept with the optimizer's memory sharded as its parameters are."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    found = dict(state["optimizer"])
    found["state"] = {
        place: {
            key: part_of(value, own[place]) if isinstance(value, torch.Tensor) else value
            for key, value in memory.items()
        }
        for place, memory in found["state"].items()
        if place < len(own)
    }
    return {**state, "optimizer": found}


def part_of(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this process's part of a tensor that all have, or the tensor if `like` is whole."""
    if not guards.is_sharded(like) or tuple(whole.shape) != tuple(like.shape):
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    every = [Replicate()] * like.device_mesh.ndim
    everywhere = DTensor.from_local(whole, like.device_mesh, every, run_check=False)
    part: torch.Tensor = everywhere.redistribute(placements=like.placements)
    return part


def _state_of(module: nn.Module) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard.state(module)  # type: ignore[attr-defined]


def _unwrap(module: nn.Module, undo: contextlib.ExitStack) -> None:
    """Take `fully_shard`'s class and hooks off a module until `undo` is closed."""
    undo.callback(setattr, module, "__class__", type(module))
    module.__class__ = type(module).__bases__[1]  # FSDPModule goes before the module's own
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = getattr(module, kind)
        undo.callback(setattr, module, kind, hooks)
        others = {key: h for key, h in hooks.items() if not _is_fsdp(h)}
        setattr(module, kind, OrderedDict(others))


def _is_fsdp(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's place among `world` that train one model; (0, 1) is a single process.

    sharded: the model, where its parameters are spread over the processes.
    """

    rank: int
    world: int
    sharded: FullySharded | None = None

    @classmethod
    def current(cls, model: nn.Module | None = None) -> Processes:
        """Return the place in torch.distributed's default group, if there is one."""
        rank, world = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        if model is None or not any(guards.is_sharded(p) for p in model.parameters()):
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
        return clipped if self.rank else replace(clipped, gradients=_apart(flat, clipped.gradients))

    def share(self, noisy: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values of process 0; of the others' only shapes and types count."""
        if self.sharded is not None:
            return self.sharded.share(noisy)
        if self.world == 1:
            return dict(noisy)
        flat = _flat(noisy)
        dist.broadcast(flat, src=0)
        return _apart(flat, noisy)

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


def _apart(flat: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {
        name: part.view(value.shape).to(value.device, value.dtype)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
