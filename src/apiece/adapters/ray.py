"""Shadow models spread over a Ray cluster; needs the `ray` extra."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from apiece.errors import UnsupportedError

if TYPE_CHECKING:
    from apiece.audit import Arrays, Mapper, Work


def cluster(address: str | None = None, *, cpus: float = 1.0, gpus: float = 0.0) -> Mapper:
    """Return a mapper for `train_shadows` that trains each block as one Ray task.

    A connection that is already open is used and left open. The data set is sent to each node
    once. Blocks come back as they finish and are written by the caller alone, so no file system
    need be shared; a task that is lost with its machine is run again by Ray, with the same result.

    Args:
        address: Of a running cluster ("auto" for the one around), None to start one on this
            machine.
        cpus: What one block takes.
        gpus: What one block takes.

    Raises:
        UnsupportedError: Where Ray is not installed; at the first block.

    Example:
        >>> mapper = cluster(cpus=1.0)  # for train_shadows(job, mapper=mapper)
    """

    def mapper(work: Work, blocks: Iterable[int]) -> Iterator[tuple[int, Arrays]]:
        ray = _ray()
        opened = not ray.is_initialized()
        if opened:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        try:
            held = ray.put(work)
            train = ray.remote(num_cpus=cpus, num_gpus=gpus)(_train)
            waiting = {train.remote(held, block): block for block in blocks}
            while waiting:
                (done, *_), _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(done), ray.get(done)
        finally:
            if opened:
                ray.shutdown()

    return mapper


def _train(work: Work, block: int) -> Arrays:
    import torch

    torch.set_num_threads(1)
    return work(block)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UnsupportedError("ray is not installed; pip install 'apiece[ray]'") from None
    return ray
