"""Shadow models spread over a Ray cluster; needs the `ray` extra."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from apiece._lazy import optional
from apiece.errors import InputError, StateError

if TYPE_CHECKING:
    from apiece.audit.shadows import Arrays, Mapper, Work


# Seconds in which a cluster must answer.
PATIENCE = 10.0


def cluster(address: str | None = None, *, cpus: float = 1.0, gpus: float = 0.0) -> Mapper:
    """Return a mapper for `train_shadows` that trains each block as one Ray task.

    A connection that is already open is used and left open. The data set is sent to each node
    once. Blocks come back as they finish and are written by the caller alone, so no file system
    need be shared; a task that is lost with its machine is run again by Ray, with the same result.

    Args:
        address: Of a running cluster (host:port, or ray://host:port of its client server; "auto"
            for the one around), None to start one on this machine.
        cpus: Processors that one block takes.
        gpus: GPUs that one block takes.

    Raises:
        NotInstalledError: Where Ray is not installed; at the first block.
        InputError: For an address that is none; at the first block.
        StateError: Where no cluster answers there, and for a block that was lost with its worker
            as often as Ray tries; what is finished is kept.

    Example:
        >>> from apiece.adapters import cluster
        >>> mapper = cluster(cpus=1.0)  # for train_shadows(job, mapper=mapper)
    """

    def mapper(work: Work, blocks: Iterable[int]) -> Iterator[tuple[int, Arrays]]:
        ray = optional("ray", "ray")
        must_connect = not ray.is_initialized()
        if must_connect:
            # For None Ray takes the last cluster that ran here, even if it is dead.
            _connect(ray, "local" if address is None else address)
        try:
            # Put once into Ray's store, from which each node fetches it.
            shared_work = ray.put(work)
            train = ray.remote(num_cpus=cpus, num_gpus=gpus)(_train)
            pending = {train.remote(shared_work, block): block for block in blocks}
            while pending:
                # One at a time, as they finish: the caller writes, and may stop in between.
                (task, *_), _ = ray.wait(list(pending), num_returns=1)
                block = pending.pop(task)
                yield block, _fetch(ray, task, block)
        finally:
            # Only a connection that was opened here is closed here.
            if must_connect:
                ray.shutdown()

    return mapper


def _train(work: Work, block: int) -> Arrays:
    """Train the shadow models of a block, in one thread of a worker."""
    import torch

    # Ray counts processors by tasks: torch must not take more.
    torch.set_num_threads(1)
    return work(block)


def _connect(ray: Any, address: str) -> None:
    """Connect, or start a cluster; for one that is not there Ray itself would wait long."""
    if address not in ("auto", "local"):
        _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    except (ConnectionError, SystemExit) as error:  # Ray ends the process where "auto" is dead
        raise StateError(
            f"ray: no cluster answers at {address} ({error}); start one, or give its address"
        ) from None


def _check_address(address: str) -> None:
    """Raise an error unless an address is one and something answers there."""
    host = None
    port = None
    try:
        # Without a scheme urlsplit needs the slashes to find a host.
        parts = urlsplit(address if "://" in address else f"//{address}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        pass  # such as a port that is no number
    if host is None or port is None:
        raise InputError(f"address = {address!r}: give host:port or ray://host:port of a cluster")
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        raise StateError(
            f"ray: no cluster answers at {address} ({error.strerror or error}); start one there "
            "with `ray start --head`, or give no address to start one here"
        ) from None


def _fetch(ray: Any, task: Any, block: int) -> Arrays:
    """Return the arrays of a finished task; `StateError` where its worker was lost."""
    try:
        arrays: Arrays = ray.get(task)
    except ray.exceptions.RayTaskError:  # an error of the training itself
        raise
    except ray.exceptions.RayError as error:
        raise StateError(
            f"ray: block {block} was lost with its worker ({type(error).__name__}) as often as Ray "
            "tries; what is finished is kept, and the same call goes on from there"
        ) from None
    return arrays
