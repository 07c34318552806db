"""Parameters sharded over processes by `fully_shard`: whole in each while gradients are clipped.

A record's norm is taken over all parameters together, so that its process needs them whole. They
are gathered once a step, before any record is seen; sums, noisy updates and what the optimizer
remembers are sharded as the parameters are.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
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
