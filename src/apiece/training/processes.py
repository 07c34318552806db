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
from apiece.training.clipping import ClippedSum, guards, torch_internals
from apiece.training.identity import bytes_of
from apiece.training.randomness import shard_tensor


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's rank among the `world` that train one model; (0, 1) is a single process.

    sharded: the model, where its parameters are spread over the processes.
    """

    rank: int
    world: int
    sharded: FullySharded | None = None

    @classmethod
    def current(cls, model: nn.Module) -> Processes:
        """Return this process's rank in torch.distributed's default group, if there is one."""
        rank = 0
        # Without a group there is one process, with everything.
        world = 1
        if dist.is_available() and dist.is_initialized():
            rank = dist.get_rank()
            world = dist.get_world_size()
        if not any(guards.is_sharded(p) for p in model.parameters()):
            return cls(rank, world)
        return cls(rank, world, FullySharded(model, world))

    @property
    def shard(self) -> tuple[int, int]:
        """(rank, world): this process has the records at positions equal to rank modulo world."""
        return self.rank, self.world

    def share_key(self, key: bytes) -> bytes:
        """Return the key of process 0."""
        if self.world == 1:
            return key
        # As a tensor, since collectives take nothing else.
        tensor = torch.tensor(list(key), dtype=torch.uint8, device=_find_device())
        dist.broadcast(tensor, src=0)
        return bytes(tensor.tolist())

    def share_parameters(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the parameters of process 0 to all processes, but for those that are sharded."""
        # Sharded parameters are each process's own part, and have no copy to be made.
        if self.world > 1:
            for tensor in (t for t in tensors if not guards.is_sharded(t)):
                copy_there = tensor.detach().to(_find_device(tensor))
                dist.broadcast(copy_there, src=0)
                tensor.detach().copy_(copy_there)

    def gather(self, clipped: ClippedSum) -> ClippedSum:
        """Return in process 0 the sum over the records of all processes, elsewhere `clipped`.

        Where parameters are sharded, every process gets its part of that sum.
        """
        if self.sharded is not None:
            return self.sharded.scatter(clipped)
        if self.world == 1:
            return clipped
        # One collective for all parameters: of small models the calls are what costs.
        # In the order of the parameters, which must be the same in all processes.
        flat = _flatten(clipped.gradients)
        dist.reduce(flat, dst=0)
        if self.rank:
            return clipped
        return replace(clipped, gradients=_split(flat, clipped.gradients))

    def share(self, noisy: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values of process 0; the others give only shapes and types."""
        if self.sharded is not None:
            for value in noisy.values():
                # What is not sharded is right in process 0 alone, which has its whole sum.
                if not guards.is_sharded(value):
                    dist.broadcast(value, src=0)
        elif self.world > 1:
            flat = _flatten(noisy)
            dist.broadcast(flat, src=0)
            return _split(flat, noisy)
        return dict(noisy)

    @property
    def adds_noise(self) -> bool:
        """Whether this process adds noise: 0 alone, or each to its part of the parameters."""
        return self.rank == 0 or self.sharded is not None

    def gather_parameters(self) -> AbstractContextManager[None]:
        """Give the model whole parameters inside the context."""
        if self.sharded is None:
            return contextlib.nullcontext()
        return self.sharded.gather_parameters()

    def reshard(self) -> None:
        """Shard again the parameters that a forward outside of training left gathered."""
        if self.sharded is not None:
            self.sharded.reshard()

    def prepare_record(self, update: Mapping[str, torch.Tensor]) -> Iterable[torch.Tensor]:
        """Return the tensors by which a journal records an update, equal in all processes."""
        if self.sharded is None:
            return update.values()
        return self.sharded.digest_parts(update)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            barrier = torch.zeros(1, device=_find_device())
            dist.all_reduce(barrier)
            barrier.item()  # a collective on a GPU is only begun until its result is read


def _find_device(tensor: torch.Tensor | None = None) -> torch.device:
    """Return the device on which a collective takes `tensor`: for nccl the current GPU."""
    # gloo takes tensors of the processor; nccl only those of a GPU.
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if tensor is None else tensor.device


def _flatten(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    flat = torch.cat([value.flatten() for value in values.values()])
    return flat.to(_find_device(flat))


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
        self._fsdp_modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
        self.reshard()
        # Only parameters under fully_shard can be gathered by it.
        # By identity: a parameter may be shared by modules.
        managed = {id(p) for m in self._fsdp_modules for p in m.parameters()}
        parameters: dict[str, Any] = dict(model.named_parameters())
        for name, p in parameters.items():
            if not guards.is_sharded(p):
                continue
            mesh = p.device_mesh
            if id(p) not in managed or mesh.ndim != 1 or mesh.size() != world:
                raise UnsupportedError(
                    f"model.{name}: is sharded as {p.placements} over {mesh.size()} of {world} "
                    "processes; a record's norm needs whole parameters: use fully_shard alone, "
                    "over one mesh of all processes, or DistributedDataParallel"
                )
        for module in self._fsdp_modules:
            state = fully_shard.state(module)  # type: ignore[attr-defined]
            # With casts of fully_shard's own, norms and sums would be of different numbers.
            policy = getattr(state, "_mp_policy", None)
            if policy is not None and (policy.param_dtype or policy.output_dtype):
                raise UnsupportedError(
                    f"model: fully_shard with {policy}; records are clipped with the parameters "
                    "as they are: leave mp_policy out, and use torch.autocast in the forward"
                )

    def reshard(self) -> None:
        """Shard again the parameters that a forward outside of training left gathered."""
        for module in self._fsdp_modules:
            module.reshard()

    @contextlib.contextmanager
    def gather_parameters(self) -> Iterator[None]:
        """Make the model an ordinary one inside the context: whole parameters, no collectives.

        All processes must enter together; what they do inside is up to each.
        """
        # By the id of a sharded parameter its whole copy, so that one that is shared stays shared.
        copies: dict[int, nn.Parameter] = {}
        with contextlib.ExitStack() as undo, torch.no_grad():
            for module in self._model.modules():
                parameters = torch_internals.parameters_of(module)
                for name, p in parameters.items():
                    if p is None or not guards.is_sharded(p):
                        continue
                    if id(p) not in copies:
                        copies[id(p)] = nn.Parameter(gather_tensors(p), p.requires_grad)
                    # Registered before the exchange, so that an error in between is undone as well.
                    undo.callback(parameters.__setitem__, name, p)
                    parameters[name] = copies[id(p)]
            for module in self._fsdp_modules:
                _unwrap(module, undo)
            with torch.enable_grad():
                yield

    def scatter(self, clipped: ClippedSum) -> ClippedSum:
        """Return the sum over the records of all processes, sharded as the parameters are.

        Parameters that are not sharded have it in process 0 only.
        """
        from torch.distributed.tensor import DTensor, Partial

        parameters: dict[str, Any] = dict(self._model.named_parameters())
        sums: dict[str, torch.Tensor] = {}
        for name, value in clipped.gradients.items():
            p = parameters[name]
            if guards.is_sharded(p):
                # Partial: each process holds a term of the sum; to redistribute adds them up.
                parts = DTensor.from_local(value, p.device_mesh, [Partial()], run_check=False)
                sums[name] = parts.redistribute(placements=p.placements)
            else:
                sums[name] = value.clone()
                dist.reduce(sums[name], dst=0)
        return replace(clipped, gradients=sums)

    def digest_parts(self, update: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return, in every process, the digests of all processes' parts of an update."""
        digest = hashlib.blake2b()
        for value in update.values():
            part = value.to_local() if guards.is_sharded(value) else value
            digest.update(bytes_of(part))
        # Digests, not parts, are exchanged: each process can then record the whole update.
        local = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        device = next(iter(update.values())).device
        digests = [torch.empty_like(local, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(digests, local.to(device))
        return digests


def _unwrap(module: nn.Module, undo: contextlib.ExitStack) -> None:
    """Take `fully_shard`'s class and hooks off a module until `undo` is closed."""
    # Class and hooks are put back in reverse order.
    undo.callback(setattr, module, "__class__", type(module))
    module.__class__ = type(module).__bases__[1]  # FSDPModule goes before the module's own
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = getattr(module, kind)
        undo.callback(setattr, module, kind, hooks)
        remaining = {
            key: hook
            for key, hook in hooks.items()
            if not str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")
        }
        setattr(module, kind, OrderedDict(remaining))


def gather_tensors(tree: Any) -> Any:
    """Return a state dict with sharded tensors made whole; all processes must call it together."""
    if isinstance(tree, dict):
        gathered = copy.copy(tree)  # with the attributes that torch puts on it, as _metadata
        gathered.update({key: gather_tensors(value) for key, value in tree.items()})
        return gathered
    return tree.full_tensor() if guards.is_sharded(tree) else tree


def shard_tensors(state: State, like: Mapping[str, torch.Tensor]) -> State:
    """Return whole tensors by name as parts, where those of `like` are sharded."""
    parts = copy.copy(state)
    for name, tensor in state.items():
        if name in like:
            # Only tensors of the same name and shape are sharded; counters stay whole.
            parts[name] = shard_tensor(tensor, like[name])
    return parts


def shard_updates(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> State:
    """Return a state of `Updates` with the optimizer's tensors sharded as its parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    memories = {}
    for position, memory in state["optimizer"]["state"].items():
        # State that belongs to no parameter of this optimizer is left out.
        if position >= len(parameters):
            continue
        memories[position] = {
            key: shard_tensor(value, parameters[position])
            if isinstance(value, torch.Tensor)
            else value
            for key, value in memory.items()
        }
    return {**state, "optimizer": {**state["optimizer"], "state": memories}}
