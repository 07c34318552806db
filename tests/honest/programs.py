"""Random honest programs: models of two to eight operators, written as source from a seed.

Each line makes the value of every record from that record and from parameters, never from another
record. Parameters are stored in one shape and used in another: through permutations, views, slices,
broadcasting on both sides, sums with `keepdim`, tables, norms and products.
"""

from __future__ import annotations

import linecache
import random
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

Shape = tuple[int, ...]
# Entries of a record's value, beyond which a program takes another line.
_LARGEST_VALUE = 150
# Absolute value beyond which a value is brought back by a tanh.
_LARGEST_ENTRY = 30.0

_ACTIVATIONS = (
    "torch.relu({h})", "torch.tanh({h})", "torch.sigmoid({h})", "functional.gelu({h})",
    "functional.silu({h})", "functional.softplus({h})", "functional.elu({h})",
    "functional.leaky_relu({h}, 0.2)", "functional.hardswish({h})", "functional.mish({h})",
    "functional.gelu({h}, approximate='tanh')", "functional.logsigmoid({h})", "{h}.sin()",
    "functional.celu({h}, 0.7)", "functional.softsign({h})", "torch.atan({h})",
    "functional.hardsigmoid({h})", "functional.relu6({h})", "functional.tanhshrink({h})",
    "functional.softshrink({h}, 0.3)", "functional.hardshrink({h}, 0.3)", "{h}.square()",
    "{h}.abs()", "{h}.clamp(-1.5, 1.5)", "torch.exp(-{h}.abs())", "torch.log1p({h}.square())",
    "torch.sqrt(1 + {h}.square())", "torch.erf({h})", "functional.threshold({h}, 0.1, 0.2)",
)  # fmt: skip
_BINARY = (
    "{h} * {p}", "{p} * {h}", "{h} + {p}", "{p} - {h}", "{h} / (1 + {p}.square())",
    "{p} / (1 + {h}.square())", "torch.where({h} > 0, {h}, {p})", "torch.maximum({h}, {p})",
    "torch.lerp({h}, {p}, 0.3)", "torch.addcmul({p}, {h}, {p})", "torch.minimum({p}, {h})",
    "torch.logaddexp({h}, {p})", "torch.sub({h}, {p}, alpha=0.5)",
    "torch.atan2({h}, 2 + {p}.abs())",
    "torch.hypot({h}, 1 + {p}.abs())", "(1 + {p}.square()).pow({h}.tanh())",
)  # fmt: skip


@dataclass
class Program:
    """A model with a loss, its records, and the source that it was made of."""

    seed: int
    source: str
    model: nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass
class _Writer:
    """Source in the making, with the tensors that it names."""

    chance: random.Random
    seed: int
    generator: torch.Generator
    lines: list[str] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def parameter(self, shape: Shape) -> str:
        """Return the name of a new parameter of a shape, or of one that has that shape already."""
        same = [name for name, one in self.parameters.items() if tuple(one.shape) == shape]
        if same and self.chance.random() < 0.3:
            return f"self.{self.chance.choice(same)}"
        name = f"p{len(self.parameters)}"
        self.parameters[name] = (
            torch.rand(shape, generator=self.generator, dtype=torch.float64) - 0.5
        )
        return f"self.{name}"

    def table(self, values: torch.Tensor) -> str:
        """Return the name of a new buffer."""
        name = f"b{len(self.buffers)}"
        self.buffers[name] = values
        return f"self.{name}"

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    # ------------------------------------------------------------ parameters, used in a shape

    def shared(self, shape: Shape, depth: int = 2) -> str:
        """Return an expression of parameters alone that has a shape."""
        if depth == 0 or self.maybe(0.15):
            return self.parameter(shape)
        if not shape:
            return self.chance.choice([self.by_sum, self.by_view, self.by_squeeze])(
                shape, depth - 1
            )
        ways = [self.by_function, self.by_slice, self.by_view, self.by_sum, self.by_table]
        ways += [self.by_two, self.by_unsqueeze, self.by_squeeze]
        if len(shape) > 1:
            ways += [self.by_permute, self.by_transpose, self.by_permute, self.by_transpose]
            ways += [self.by_product, self.by_norm]
        if any(size > 1 for size in shape):
            ways += [self.by_expand, self.by_roll, self.by_join]
        return self.chance.choice(ways)(shape, depth - 1)

    def axis(self, shape: Shape) -> int:
        return self.chance.randrange(len(shape))

    def by_permute(self, shape: Shape, depth: int) -> str:
        order = list(range(len(shape)))
        self.chance.shuffle(order)
        stored = [0] * len(shape)
        for at, axis in enumerate(order):
            stored[axis] = shape[at]
        return f"{self.shared(tuple(stored), depth)}.permute({', '.join(map(str, order))})"

    def by_transpose(self, shape: Shape, depth: int) -> str:
        one, other = self.chance.sample(range(len(shape)), 2)
        stored = list(shape)
        stored[one], stored[other] = stored[other], stored[one]
        inner = self.shared(tuple(stored), depth)
        if {one, other} == {len(shape) - 1, len(shape) - 2} and self.maybe(0.5):
            return f"{inner}.mT"
        name = self.chance.choice(["transpose", "swapaxes"])
        return f"{inner}.{name}({one}, {other - len(shape)})"

    def by_unsqueeze(self, shape: Shape, depth: int) -> str:
        ones = [k for k, size in enumerate(shape) if size == 1]
        if not ones:
            return self.by_view(shape, depth)
        k = self.chance.choice(ones)
        return f"{self.shared((*shape[:k], *shape[k + 1 :]), depth)}.unsqueeze({k})"

    def by_squeeze(self, shape: Shape, depth: int) -> str:
        k = self.chance.randrange(len(shape) + 1)
        return f"{self.shared((*shape[:k], 1, *shape[k:]), depth)}.squeeze({k})"

    def by_view(self, shape: Shape, depth: int) -> str:
        count = 1
        for size in shape:
            count *= size
        halves = [n for n in range(1, count + 1) if count % n == 0]
        one = self.chance.choice(halves)
        stored = self.chance.choice([(count,), (one, count // one), (1, one, count // one)])
        return f"{self.shared(stored, depth)}.reshape({shape})"

    def by_expand(self, shape: Shape, depth: int) -> str:
        k = self.chance.choice([k for k, size in enumerate(shape) if size > 1])
        stored = (*shape[:k], 1, *shape[k + 1 :])
        inner = self.shared(stored, depth)
        if self.maybe(0.5):
            times = [size if axis == k else 1 for axis, size in enumerate(shape)]
            return f"{inner}.repeat({', '.join(map(str, times))})"
        return f"{inner}.expand({', '.join(map(str, shape))})"

    def by_slice(self, shape: Shape, depth: int) -> str:
        k = self.axis(shape)
        more = self.chance.choice([1, 2])
        if self.maybe(0.3):
            stored = (*shape[:k], shape[k] * 2, *shape[k + 1 :])
            cut = "::2"
        else:
            stored = (*shape[:k], shape[k] + more, *shape[k + 1 :])
            cut = f"{more}:" if self.maybe(0.5) else f":{shape[k]}"
        return f"{self.shared(stored, depth)}[{', '.join([':'] * k + [cut])}]"

    def by_sum(self, shape: Shape, depth: int) -> str:
        name = self.chance.choice(["sum", "mean", "sum", "amax", "logsumexp", "norm"])
        ones = [k for k, size in enumerate(shape) if size == 1]
        if ones and self.maybe(0.7):
            k = self.chance.choice(ones)
            stored = (*shape[:k], 3, *shape[k + 1 :])
            return f"{self.shared(stored, depth)}.{name}(dim={k}, keepdim=True)"
        k = self.chance.randrange(len(shape) + 1)
        return f"{self.shared((*shape[:k], 3, *shape[k:]), depth)}.{name}(dim={k})"

    def by_function(self, shape: Shape, depth: int) -> str:
        inner = self.shared(shape, depth)
        return self.chance.choice([
            "torch.tanh({})", "functional.softplus({})", "{}.softmax(-1)", "-{}", "{}.clone()",
            "{}.contiguous()", "{}.square()", "(0.5 * {})", "{}.cumsum(0)", "torch.sigmoid({})",
            "{}.to(x.dtype)", "functional.normalize({}, dim=-1)", "{}.log_softmax(0)",
        ]).format(inner)  # fmt: skip

    def by_roll(self, shape: Shape, depth: int) -> str:
        k = self.axis(shape)
        name = self.chance.choice([f"roll(1, {k})", f"flip({k})", f"roll(-1, {k})"])
        return f"{self.shared(shape, depth)}.{name}"

    def by_table(self, shape: Shape, depth: int) -> str:
        """Rows of a table by constant numbers, as relative positions are looked up."""
        count = self.chance.choice([3, 4])
        wanted = torch.randint(0, count, shape[:1], generator=self.generator)
        name = self.table(wanted)
        inner = self.shared((count, *shape[1:]), depth)
        return self.chance.choice([f"{inner}[{name}]", f"{inner}.index_select(0, {name})"])

    def by_join(self, shape: Shape, depth: int) -> str:
        k = self.chance.choice([k for k, size in enumerate(shape) if size > 1])
        one = self.shared((*shape[:k], 1, *shape[k + 1 :]), depth)
        other = self.shared((*shape[:k], shape[k] - 1, *shape[k + 1 :]), depth)
        if shape[k] == 2 and self.maybe(0.5):
            stored = (*shape[:k], *shape[k + 1 :])
            both = [self.shared(stored, depth) for _ in range(2)]
            return f"torch.stack([{', '.join(both)}], {k})"
        if self.maybe(0.3):
            ends = [0, 0] * (len(shape) - 1 - k) + [1, 0]
            return f"functional.pad({other}, {tuple(ends)})"
        return f"torch.cat([{one}, {other}], {k})"

    def by_two(self, shape: Shape, depth: int) -> str:
        one = self.shared(shape, depth)
        narrow = tuple(size if self.maybe(0.5) else 1 for size in shape)
        return f"({one} {self.chance.choice('*+')} {self.shared(narrow, depth)})"

    def by_product(self, shape: Shape, depth: int) -> str:
        one = self.shared((*shape[:-1], 2), depth)
        other = self.shared((*shape[:-2], 2, shape[-1]), depth)
        return f"({one} @ {other})"

    def by_norm(self, shape: Shape, depth: int) -> str:
        """A direction and a length, as weight norm has them."""
        name = self.parameter(shape)
        return f"({name} / {name}.norm(dim=-1, keepdim=True))"

    def beside(self, shape: Shape) -> str:
        """Return an expression that broadcasts with a record's value of a shape."""
        sizes = [size if self.maybe(0.65) else 1 for size in shape]
        while sizes and self.maybe(0.25):
            sizes.pop(0)
        if not sizes:
            sizes = [1] if self.maybe(0.5) else [shape[-1]]
        result = self.shared(tuple(sizes))
        if self.maybe(0.08) and len(sizes) == len(shape):
            return f"{result}.expand(len(x), {', '.join(map(str, sizes))})"
        if self.maybe(0.08) and len(sizes) == len(shape):
            return f"{result}.repeat(len(x), {', '.join('1' for _ in sizes)})"
        return result

    # ------------------------------------------------------------ a line of the program

    def line(self, shape: Shape) -> str:
        """Return an expression of `h`, of shape (B, *shape), that has one value a record."""
        ways: list[Callable[[Shape], str]] = [
            self.activation, self.binary, self.binary, self.binary, self.reduced,
            self.beside_reduced, self.linear, self.product, self.moved, self.cut,
            self.normed, self.scanned, self.picked, self.gated, self.joined,
        ]  # fmt: skip
        if len(shape) == 1:
            ways += [self.bilinear, self.embedded, self.outer]
        if len(shape) == 2:
            ways += [self.convolved, self.attended, self.embedded]
        if len(shape) == 3:
            ways += [self.convolved2, self.pooled, self.resized]
        return self.chance.choice(ways)(shape)

    def activation(self, _shape: Shape) -> str:
        return self.chance.choice(_ACTIVATIONS).format(h="h")

    def binary(self, shape: Shape) -> str:
        return self.chance.choice(_BINARY).format(h="h", p=self.beside(shape))

    def reduced(self, shape: Shape) -> str:
        k = 1 + self.axis(shape)
        name = self.chance.choice(
            ["sum", "mean", "amax", "logsumexp", "std", "var", "norm", "prod"]
        )
        keep = ", keepdim=True" if len(shape) == 1 or self.maybe(0.5) else ""
        return f"{'(h + 0.1 * torch.tanh(h)).' if name == 'prod' else 'h.'}{name}(dim={k}{keep})"

    def beside_reduced(self, shape: Shape) -> str:
        """What is broadcast on both sides: some axes of the records', others of a parameter's."""
        k = 1 + self.axis(shape)
        sign = self.chance.choice("*+-")
        return f"h.mean(dim={k}, keepdim=True) {sign} {self.shared(shape)}"

    def linear(self, shape: Shape) -> str:
        out = self.chance.choice([2, 3, 4])
        weight = self.shared((out, shape[-1]))
        bias = f", {self.shared((out,))}" if self.maybe(0.6) else ""
        return f"functional.linear(h, {weight}{bias})"

    def product(self, shape: Shape) -> str:
        out = self.chance.choice([1, 2, 3])
        if len(shape) == 1:
            return f"h @ {self.shared((shape[0], out))}"
        batched = self.maybe(0.3) and len(shape) > 2
        before = shape[:-2] if batched else ()
        if self.maybe(0.4):
            return f"{self.shared((*before, out, shape[-2]))} @ h"
        if self.maybe(0.3):
            letters = "cdefg"[: len(shape)]
            other = self.chance.choice(letters)
            size = shape[letters.index(other)]
            result = letters.replace(other, "z") if self.maybe(0.6) else f"z{letters}"
            weight = self.shared((out, size))
            return f"torch.einsum('b{letters},z{other}->b{result}', h, {weight})"
        return f"h @ {self.shared((*before, shape[-1], out))}"

    def moved(self, shape: Shape) -> str:
        order = list(range(1, len(shape) + 1))
        self.chance.shuffle(order)
        moved = f"h.permute(0, {', '.join(map(str, order))})"
        if self.maybe(0.3):
            return f"{moved}.flatten(1)"
        if self.maybe(0.3):
            k = self.chance.randrange(1, len(shape) + 2)
            return f"{moved}.unsqueeze({k})" if len(shape) < 3 else moved
        if self.maybe(0.3):
            # the records along another axis, and back
            inner = self.beside((*shape[:1], 1, *shape[1:]))
            return f"(h.transpose(0, 1) * {inner}).transpose(0, 1)"
        if self.maybe(0.3):
            width = shape[-1]
            inner = f"functional.linear(h.reshape(-1, {width}), {self.shared((width, width))})"
            return f"{inner}.reshape(len(x), {', '.join(map(str, shape))})"
        return moved

    def cut(self, shape: Shape) -> str:
        k = 1 + self.axis(shape)
        size = shape[k - 1]
        if size < 2:
            return f"torch.cat([h, {self.chance.choice(['h', '-h', 'h.tanh()'])}], {k})"
        return self.chance.choice([
            f"h.narrow({k}, 1, {size - 1})", f"h.roll(1, {k})", f"h.flip({k})",
            f"h.chunk(2, {k})[0]", f"h.select({k}, 0).unsqueeze({k})",
            f"h.unfold({k}, 2, 1).sum(-1)", f"h.split(1, {k})[-1]", "functional.pad(h, (1, 0))",
            f"h.diff(dim={k})", f"torch.stack(h.unbind({k}), {k})",
            f"h.tile({', '.join('1' for _ in shape)}, 2)",
        ])  # fmt: skip

    def normed(self, shape: Shape) -> str:
        width = shape[-1]
        scale, shift = self.shared((width,)), self.shared((width,))
        which = self.chance.choice(["layer", "rms", "normalize", "softmax", "log_softmax", "group"])
        if which == "layer":
            return f"functional.layer_norm(h, ({width},), {scale}, {shift}, 1e-2)"
        if which == "rms":
            return f"functional.rms_norm(h, ({width},), {scale}, 1e-2)"
        if which == "normalize":
            return f"functional.normalize(1 + h.square(), dim=-1) * {scale}"
        if which == "group" and len(shape) > 1:
            channels = shape[0]
            weight = self.shared((channels,))
            return f"functional.group_norm(h, 1, {weight}, {self.shared((channels,))}, 1e-2)"
        return f"h.{which if which != 'group' else 'softmax'}({-1 if self.maybe(0.5) else 1})"

    def scanned(self, shape: Shape) -> str:
        k = 1 + self.axis(shape)
        return self.chance.choice([
            f"h.cumsum({k})", f"h.sort({k}).values", f"h.topk(1, {k}).values",
            f"h.logcumsumexp({k})",
            f"h.max({k}, keepdim=True).values", f"h.cummax({k}).values", f"h.tanh().cumprod({k})",
            f"h.median({k}, keepdim=True).values",
        ])  # fmt: skip

    def picked(self, shape: Shape) -> str:
        """What a record's own values pick of a parameter."""
        table = self.shared((4, shape[-1]))
        index = "(2 * h.detach().reshape(len(x), -1).mean(1) + 0.3719).long().clamp(-1, 1) + 1"
        if self.maybe(0.5):
            view = ", ".join(["len(x)", *("1" for _ in shape[1:]), str(shape[-1])])
            return f"h + {table}[{index}].view({view})"
        return f"h * functional.embedding((h.detach() > 0).long(), {self.shared((4, 2))}).sum(-1)"

    def gated(self, shape: Shape) -> str:
        return f"torch.sigmoid(h * {self.beside(shape)}) * torch.tanh(h + {self.beside(shape)})"

    def joined(self, shape: Shape) -> str:
        k = 1 + self.axis(shape)
        other = self.shared(shape)
        both = f"torch.cat([h, h * {other}], {k})"
        return both if self.maybe(0.6) else f"torch.cat([h, {other}.expand_as(h)], {k})"

    def outer(self, shape: Shape) -> str:
        return (
            f"h.unsqueeze(2) * {self.shared((3,))}"
            if self.maybe(0.5)
            else (f"torch.einsum('bi,ij,bj->bi', h, {self.shared((shape[0], shape[0]))}, h)")
        )

    def bilinear(self, shape: Shape) -> str:
        return f"functional.bilinear(h, h, {self.shared((2, shape[0], shape[0]))})"

    def embedded(self, shape: Shape) -> str:
        table = self.shared((5, 2))
        index = "(h.detach().sigmoid() * 5).long().clamp(max=4)"
        if len(shape) == 2 or self.maybe(0.5):
            return f"functional.embedding({index}, {table})"
        mode = self.chance.choice(["sum", "mean"])
        return f"functional.embedding_bag({index}, {table}, mode='{mode}')"

    def convolved(self, shape: Shape) -> str:
        weight = self.shared((2, shape[0], 2))
        if shape[1] < 2:
            return f"functional.conv1d(h, {self.shared((2, shape[0], 1))})"
        if self.maybe(0.3):
            return f"functional.conv_transpose1d(h, {self.shared((shape[0], 2, 2))})"
        padding = self.chance.choice([0, 1])
        return f"functional.conv1d(h, {weight}, {self.shared((2,))}, padding={padding})"

    def attended(self, shape: Shape) -> str:
        if self.maybe(0.5):
            bias = self.shared((shape[0], shape[0]))
            return f"(h @ h.mT + {bias}).softmax(-1) @ h"
        mask = f", attn_mask={self.shared((shape[0], shape[0]))}" if self.maybe(0.4) else ""
        q = f"(h @ {self.shared((shape[1], shape[1]))})"
        return f"functional.scaled_dot_product_attention({q}, h, h{mask})"

    def convolved2(self, shape: Shape) -> str:
        if min(shape[1:]) < 2:
            return f"functional.conv2d(h, {self.shared((2, shape[0], 1, 1))})"
        if self.maybe(0.3):
            return f"functional.conv2d(h, {self.shared((shape[0], 1, 2, 2))}, groups={shape[0]})"
        stride = self.chance.choice([1, 2])
        return f"functional.conv2d(h, {self.shared((2, shape[0], 2, 2))}, stride={stride})"

    def pooled(self, shape: Shape) -> str:
        if min(shape[1:]) < 2:
            return "h.mean((2, 3), keepdim=True)"
        return self.chance.choice([
            "functional.max_pool2d(h, 2, 1)", "functional.avg_pool2d(h, 2, 1)",
            "functional.adaptive_avg_pool2d(h, 1)", "h.amax((2, 3))", "functional.unfold(h, 2)",
        ])  # fmt: skip

    def resized(self, _shape: Shape) -> str:
        mode = self.chance.choice(["nearest", "bilinear"])
        return f"functional.interpolate(h, size=(3, 2), mode='{mode}')"


_LOSSES = (
    "(o.flatten(1).sum(1) - y).square()",
    "(o.flatten(1) - y.unsqueeze(1)).square().mean(1)",
    "functional.smooth_l1_loss(o.flatten(1), y.unsqueeze(1).expand_as(o.flatten(1)),"
    " reduction='none').sum(1)",
    "functional.binary_cross_entropy_with_logits(o.flatten(1).mean(1), y.sigmoid(),"
    " reduction='none')",
    "functional.huber_loss(o.flatten(1).mean(1), y, reduction='none')",
)


def _arranged(chance: random.Random, inputs: torch.Tensor) -> torch.Tensor:
    """Return records with the same values in another arrangement of memory."""
    way = chance.random()
    if way < 0.6 or inputs.dim() < 3:
        return inputs
    if way < 0.8:
        return inputs.transpose(1, -1).contiguous().transpose(1, -1)
    if way < 0.9:
        return inputs.transpose(0, 1).contiguous().transpose(0, 1)
    return torch.stack([inputs, inputs], -1)[..., 0]


def program_of(seed: int) -> Program:
    """Return the program of a seed, the same on every machine."""
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    writer = _Writer(chance, seed, generator)
    size = chance.choice([1, 2, 5, 5, 6, 7])
    rank = chance.choice([1, 2, 2, 3])
    shape = tuple(chance.choice([1, 2, 3, 4]) for _ in range(rank))
    if chance.random() < 0.5:  # axes of one size, which may be exchanged in silence
        shape = (chance.choice([2, 3]),) * rank
    x = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
    y = torch.randn(size, generator=generator, dtype=torch.float64)
    space = {"torch": torch, "functional": nn.functional}
    h = x
    wanted = chance.randrange(2, 9)
    while len(writer.lines) < wanted or not any("self.p" in line for line in writer.lines):
        shared_state = dict(writer.parameters), dict(writer.buffers)
        text = writer.line(tuple(h.shape[1:]))
        names: dict[str, object] = {**writer.parameters, **writer.buffers}
        with warnings.catch_warnings():  # a line that torch warns of is mostly not finite
            warnings.simplefilter("ignore")
            made = eval(text, space, {"x": x, "h": h, "self": type("Held", (), names)})
        entries = made[0].numel()
        fits = len(made) == size and made.dim() in (2, 3, 4) and 0 < entries <= _LARGEST_VALUE
        if not (fits and made.isfinite().all()):
            writer.parameters, writer.buffers = shared_state
            continue
        writer.lines.append(f"h = {text}")
        if made.abs().max() > _LARGEST_ENTRY:
            writer.lines.append("h = torch.tanh(h / 8)")
            made = torch.tanh(made / 8)
        h = made
    for k in range(len(writer.parameters)):
        name = f"p{k}"
        if not any(f"self.{name}" in line for line in writer.lines):
            del writer.parameters[name]
    body = "\n".join(["h = x", *writer.lines, "return h"])
    source = (
        f"class Program{seed}(nn.Module):\n    def forward(self, x):\n"
        + textwrap.indent(body, " " * 8)
        + f"\n\ndef loss(o, y):\n    return {chance.choice(_LOSSES)}\n"
    )
    file = f"/programs/{seed}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    held: dict[str, object] = {"torch": torch, "nn": nn, "functional": nn.functional,
                               "__name__": "honest_program"}  # fmt: skip
    exec(compile(source, file, "exec"), held)
    model: nn.Module = held[f"Program{seed}"]()  # type: ignore[operator]
    for name, tensor in writer.parameters.items():
        model.register_parameter(name, nn.Parameter(tensor.float()))
    for name, tensor in writer.buffers.items():
        model.register_buffer(name, tensor)
    inputs = _arranged(chance, x.float())
    return Program(seed, source, model, held["loss"], inputs, y.float())  # type: ignore[arg-type]
