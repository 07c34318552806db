"""Streams of randomness for sampling, noise and the model; noise on a sum that knows its bounds.

Every stream is derived from one key, a purpose and the number of the step, so that a run that was
killed draws the same batch and the same noise for the same step again. Without a seed the key
comes from the operating system and the noise from ChaCha20; with a seed both can be repeated by
whoever knows the seed, which is what experiments want and a release must not have.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError, StateError
from apiece.training.clipping import ClippedSum, guards

# Bytes of the key of all randomness, as ChaCha20 takes it.
KEY_BYTES = 32

# Normal values made in a pass: the working set stays in the second-level cache.
_BLOCK = 1 << 14

# The text that is encrypted in a pass, 8 bytes a value: the cipher's stream itself comes out.
_ZEROS = bytes(8 * _BLOCK)

# The grid of noisy sums is finer than the noise's standard deviation by 2⁻²⁰, rounded down to a
# power of two; rounding to it adds 1e-13 of the noise's variance.
_GRID_BITS = 20


def check_process(process: int) -> None:
    """Raise `StateError` in another process than the one with this id."""
    if os.getpid() != process:
        raise StateError(
            f"randomness: made in process {process} and used in {os.getpid()}, which was forked "
            "from it: both would draw the same noise, and its difference is none; make a new "
            "stream or trainer in each process, or start processes by spawn"
        )


class Uncopied:
    """An object that refuses to be copied and pickled: its copy would draw the same noise."""

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        raise self._make_refusal()

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise self._make_refusal()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise self._make_refusal()

    def _make_refusal(self) -> StateError:
        return StateError(
            f"{type(self).__name__}: cannot be copied or pickled; both would draw the same noise, "
            "and the difference of two sums with it has none: make a new one, with randomness of "
            "its own; to go on elsewhere, save a checkpoint and resume that"
        )


class ChaCha20Stream(Uncopied):
    """Random numbers from the ChaCha20 cipher (RFC 8439), read off one after the other.

    Not thread-safe. A forked process would draw the same numbers as its parent, so there it
    refuses, and so would a copy, so it refuses to be copied or pickled.

    Args:
        key: 32 bytes; None asks the operating system for them.

    Raises:
        InputError: For a key of another length.
        StateError: From its methods, in a forked process.

    Example:
        >>> from apiece.training.randomness import ChaCha20Stream
        >>> a, b = ChaCha20Stream(bytes(32)), ChaCha20Stream(bytes(32))
        >>> bool((a.uniform(5) == b.uniform(5)).all())
        True
    """

    def __init__(self, key: bytes | None = None) -> None:
        key = os.urandom(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise InputError(f"key: {len(key)} bytes; ChaCha20 takes {KEY_BYTES}")
        # A zero nonce is safe, since a key is used for one stream only.
        self._encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._process = os.getpid()

    def bits(self, size: int) -> npt.NDArray[np.uint64]:
        """Return `size` independent uniform 64-bit words.

        Args:
            size: Number of words.
        """
        check_process(self._process)
        # Encrypting zeros gives the cipher's stream itself.
        words = self._encryptor.update(bytes(8 * size))
        return np.frombuffer(words, dtype=np.uint64)

    def uniform(self, size: int) -> Floats:
        """Return `size` doubles, uniform on the midpoints of a grid of 2⁵³ cells of (0, 1).

        Args:
            size: Number of values.
        """
        # The midpoint (k + ½)·2⁻⁵³ is never 0 nor 1.
        cells = self.bits(size) >> np.uint64(11)  # the upper 53 of 64 bits
        return (cells.astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, size: int) -> torch.Tensor:
        """Return `size` standard normal doubles, two words a pair.

        The radius takes 52 bits, so that no value exceeds 8.57 standard deviations: the mass
        beyond is 1e-17.

        Args:
            size: Number of values.

        References:
            Box and Muller 1958.
        """
        check_process(self._process)
        out = torch.empty(size, dtype=torch.float64)
        # Rounded up to whole pairs; at most a block, which is used again and again.
        buffer = bytearray(8 * min(size + size % 2, _BLOCK))
        words = torch.frombuffer(buffer, dtype=torch.int64) if size else torch.empty(0)
        for start in range(0, size, _BLOCK):
            part = out[start : start + _BLOCK]
            pairs = (part.numel() + 1) // 2
            # 16 bytes a pair: one word for the radius, one for the angle.
            self._encryptor.update_into(memoryview(_ZEROS)[: 16 * pairs], buffer)
            _write_normals(words[: 2 * pairs], part, pairs)
        return out


def _write_normals(words: torch.Tensor, out: torch.Tensor, pairs: int) -> None:
    """Turn 2·pairs random words into normal values in `out`, in place: memory is what costs.

    By Box and Muller, √(−2 log u)·cos 2πv and √(−2 log u)·sin 2πv are two independent standard
    normal values for u and v independent and uniform in (0, 1).
    """
    # 52 random bits as the fraction of a double with exponent 0: uniform in [1, 2).
    words.bitwise_and_((1 << 52) - 1).bitwise_or_(1023 << 52)
    # Moved to the midpoints of 2⁵² cells of (0, 1), so that no logarithm is of 0.
    uniform = words.view(torch.float64).sub_(1 - 2.0**-53)
    # In place: `uniform` becomes the radius √(−2 log u) in its first half.
    radius = uniform[:pairs].log_().mul_(-2).sqrt_()
    angle = uniform[pairs:].mul_(2 * math.pi)
    torch.cos(angle, out=out[:pairs]).mul_(radius)
    # For an odd number the last sine is left out.
    sines = out.numel() - pairs
    torch.sin(angle[:sines], out=out[pairs:]).mul_(radius[:sines])


class NormalSource(ABC):
    """A source of the normal values of one step, all of them at once."""

    __slots__ = ()

    @abstractmethod
    def normals(self, size: int, device: torch.device) -> torch.Tensor:
        """Return `size` values on a device."""


Generator: TypeAlias = ChaCha20Stream | NormalSource | torch.Generator | np.random.Generator


def draw_uniforms(generator: Generator, size: int) -> Floats:
    """Return `size` doubles in [0, 1) from any of the generators."""
    if isinstance(generator, ChaCha20Stream):
        return generator.uniform(size)
    if isinstance(generator, np.random.Generator):
        return generator.random(size)
    if isinstance(generator, torch.Generator):
        # In double precision: comparisons with small rates would be off in single.
        draws: Floats = torch.rand(size, generator=generator, dtype=torch.float64).numpy()
        return draws
    raise _make_generator_error(generator)


def draw_normals(generator: Generator, size: int, device: torch.device) -> torch.Tensor:
    """Return `size` standard normal values on `device`.

    ChaCha20 gives doubles, so that the sum is rounded only after the noise is in it; the others
    give single precision.
    """
    if isinstance(generator, NormalSource):
        return generator.normals(size, device)
    if isinstance(generator, ChaCha20Stream):
        return generator.normal(size).to(device)
    if isinstance(generator, torch.Generator):
        return torch.randn(size, generator=generator, device=generator.device).to(device)
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(generator.standard_normal(size, dtype=np.float32)).to(device)
    raise _make_generator_error(generator)


def _make_generator_error(value: object) -> InputError:
    return InputError(
        f"generator = {value!r}: not a source of randomness; give a ChaCha20Stream (release), "
        "a torch.Generator or a numpy Generator (experiments)"
    )


@dataclass(frozen=True, slots=True, repr=False)
class Streams(Uncopied):
    """All randomness of one run, as a function of its key, the purpose and the step.

    Whoever has the key (or the seed) can take the noise off again: keep it as the data itself. In
    a forked process every stream refuses, and none is copied or pickled. Noise comes from ChaCha20
    for a release; else from torch's generator, for experiments.
    """

    key: bytes = field(repr=False)
    release: bool
    process: int = field(default_factory=os.getpid, repr=False, compare=False)

    @classmethod
    def from_seed(cls, seed: int | None) -> Streams:
        """Return the streams of a `seed`, or fresh ones from the operating system for None."""
        if seed is None:
            return cls(os.urandom(KEY_BYTES), release=True)
        number = _check.count("seed", seed, least=0)
        # Whoever knows the seed has the key: for experiments, and never for a release.
        digest = hashlib.sha256(f"apiece seed {number}".encode())
        return cls(digest.digest(), release=False)

    def derive(self, purpose: str, index: int, shard: int = 0) -> bytes:
        """Return the 32-byte key of one purpose, at one step or stage, for one process."""
        check_process(self.process)
        # A keyed hash: purposes, steps and shards have keys of which none tells another.
        message = f"{purpose} {index} {shard}".encode()
        return hashlib.blake2b(message, key=self.key, digest_size=KEY_BYTES).digest()

    def sampling(self, step: int, shard: int = 0) -> ChaCha20Stream:
        """Return the stream that says who joins `step`."""
        return ChaCha20Stream(self.derive("sampling", step, shard))

    def participation(self, stage: int, shard: int = 0) -> ChaCha20Stream:
        """Return the stream that says who joins `stage` at all."""
        return ChaCha20Stream(self.derive("participation", stage, shard))

    def noise(self, step: int) -> ChaCha20Stream | torch.Generator:
        """Return the stream of the noise of `step`."""
        key = self.derive("noise", step)
        return ChaCha20Stream(key) if self.release else _torch_generator(key)

    def model(self, step: int, shard: int = 0) -> int:
        """Return the seed of the model's own randomness in `step`."""
        return int.from_bytes(self.derive("model", step, shard)[:8], "little")

    def initialisation(self) -> torch.Generator:
        """Return a torch generator for the model's first parameters."""
        return _torch_generator(self.derive("initialisation", 0))


def _torch_generator(key: bytes) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little"))


def add_noise(
    clipped: ClippedSum, noise_stddev: float, *, seed: int | None = None
) -> dict[str, torch.Tensor]:
    """Return the sum of clipped gradients plus independent N(0, noise_stddev²), by parameter.

    What is returned lies on a grid that depends on noise_stddev alone: multiples of a power of
    two between 2⁻²¹ and 2⁻²⁰ of it. The low bits of a sum in floating point are bits of the sum
    (Mironov 2012); rounded away after the noise they tell nothing. It has the sum's type, single
    precision or more; a rounding to half precision comes later and is post-processing.

    One draw covers all parameters, in the order of `clipped.gradients`.

    Args:
        clipped: The sum, which knows its bounds.
        noise_stddev: At least 0; 0 adds nothing (and promises nothing).
        seed: None takes the noise from the operating system, as a release needs: noise, sum and
            grid are in double precision, with some 2³² values of the noise to a cell of the grid.
            A whole number from 0 on repeats the noise of an experiment, in single precision; give
            every call another, or the noise of two steps is the same.

    Raises:
        InputError: Where `clipped` is not a `ClippedSum`, noise_stddev is negative, NaN or
            infinite, or the seed is negative.

    Guarantee:
        For record i this is the Gaussian mechanism with noise multiplier
        noise_stddev / clipped.clip_norms[i], add/remove adjacency.

    References:
        Boenisch et al. 2023, §3; Mironov 2012.

    Example:
        >>> import torch
        >>> from apiece import add_noise
        >>> from apiece.training import ClippedSum
        >>> one = torch.ones(1)
        >>> total = ClippedSum({"w": torch.zeros(3)}, one, one, one)
        >>> add_noise(total, 2.0, seed=0)["w"].shape
        torch.Size([3])
    """
    return noisy_mean(clipped, noise_stddev, 1.0, generator=Streams.from_seed(seed).noise(0))


def noisy_mean(
    clipped: ClippedSum, noise_stddev: float, divisor: float, *, generator: Generator
) -> dict[str, torch.Tensor]:
    """Return the noisy sum of `add_noise` over `divisor`: the gradient that an optimizer takes.

    The divisor is the plan's and never the realised batch's, which would show how many took part.
    """
    if not isinstance(clipped, ClippedSum):
        raise InputError(
            f"clipped: a {type(clipped).__name__}; noise goes only on the ClippedSum that "
            "clip_and_sum returns, whose bounds are known"
        )
    stddev = _check.finite("noise_stddev", noise_stddev)
    if not stddev >= 0:
        raise InputError(f"noise_stddev = {stddev!r}: must be at least 0")
    sums = clipped.gradients
    if stddev == 0 or not sums:
        return {name: total / divisor for name, total in sums.items()}
    totals = list(sums.values())
    sizes = [total.numel() for total in totals]
    # One draw for all parameters, in their order: one stream a step.
    flat = draw_normals(generator, sum(sizes), totals[0].device).mul_(stddev)
    types = {total.dtype for total in totals}
    is_joint = len(types) == 1 and not any(map(guards.is_sharded, totals))
    if is_joint:
        # One operator for all tensors: of a small model's step the calls are what costs.
        # Sum and noise meet in the noise's precision, double for a release, and are rounded to the
        # grid there.
        flat.add_(torch.cat([total.reshape(-1) for total in totals]))
        _round_to_grid(flat, stddev)
        flat = flat.to(totals[0].dtype).div_(divisor)
    parts = flat.split_with_sizes(sizes)
    # Views into the flat tensor, in the shapes of the sums.
    noisy = [part.view(total.shape) for part, total in zip(parts, totals, strict=True)]
    if not is_joint:
        # A sharded sum gets its part of the noise, which is drawn whole in every process.
        for position, total in enumerate(totals):
            values = shard_tensor(noisy[position], total).add_(total)
            _round_to_grid(values, stddev)
            noisy[position] = values.to(total.dtype).div_(divisor)
    return dict(zip(sums, noisy, strict=True))


def _round_to_grid(values: torch.Tensor, stddev: float) -> None:
    """Round the values to the grid of `stddev`, in place.

    Scaling by a power of two is exact, so that each value goes to the nearest multiple. Where
    noise is below 1e-24 the grid stays at 2⁻¹⁰⁰, within reach of single precision.
    """
    _, exponent = math.frexp(stddev)  # stddev is in [2^(exponent − 1), 2^exponent)
    # A power of two between stddev·2⁻²¹ and stddev·2⁻²⁰.
    step = 2.0 ** max(exponent - 1 - _GRID_BITS, -100)
    values.mul_(1 / step).round_().mul_(step)


def shard_tensor(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this process's part of a tensor that all have; the tensor if `like` is not sharded."""
    if not guards.is_sharded(like) or tuple(tensor.shape) != tuple(like.shape):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    # Each process has the whole tensor: taking its own part needs no communication.
    replicated = [Replicate()] * like.device_mesh.ndim
    everywhere = DTensor.from_local(tensor, like.device_mesh, replicated, run_check=False)
    part: torch.Tensor = everywhere.redistribute(placements=like.placements)
    return part
