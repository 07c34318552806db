"""Several processes, one mechanism: records are sharded, sums added up, noise drawn once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from apiece.training.clipping import ClippedSum, guards
from apiece.training.fully_sharded import FullySharded


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
