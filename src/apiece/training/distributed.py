"""Several processes, one mechanism: records are sharded, sums added up, noise drawn once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from apiece.training.clipped import ClippedSum


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's place among `world` that train one model; (0, 1) is a single process."""

    rank: int
    world: int

    @classmethod
    def current(cls) -> Processes:
        """Return the place in torch.distributed's default group, if there is one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls(0, 1)

    @property
    def shard(self) -> tuple[int, int]:
        """The records of this process: positions equal to rank modulo world."""
        return self.rank, self.world

    def share_key(self, key: bytes) -> bytes:
        """Return the key of process 0."""
        if self.world == 1:
            return key
        box = [key]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def share_parameters(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the parameters of process 0 to all."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def add_up(self, noisy: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the sums over all processes, of which only process 0's has noise in it."""
        if self.world == 1:
            return noisy
        flat = torch.cat([value.flatten() for value in noisy.values()])
        dist.all_reduce(flat)
        parts = torch.split(flat, [value.numel() for value in noisy.values()])
        return {
            name: part.view(value.shape)
            for (name, value), part in zip(noisy.items(), parts, strict=True)
        }

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            dist.barrier()


def without_noise(clipped: ClippedSum) -> dict[str, torch.Tensor]:
    """Return the bare sum of a process whose noise process 0 adds; it must only be reduced."""
    return dict(clipped.gradients)
