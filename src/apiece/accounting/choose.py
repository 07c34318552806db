"""Choice of evaluators: one table says who answers what, and why; every route asks it.

`TABLE` is read from top to bottom. A question is the normal form of a mechanism and a method; each
evaluator that knows mechanisms of this form is asked in turn, until one is exact or bounds lie as
close as is wanted. What it says goes through one gate (`bounds.check_bounds`): numbers that are no
bounds are not used, and the next one is asked. So

- one plain Gaussian is answered by "Gaussian formula",
- a thousand sampled Gaussians by "contour integral", all in one array, and by "loss lattice" where
  that is not close,
- anything with Laplace noise in a composition by "loss lattice", and never above its "pure ε",
- what is past the range of all of them by "Rényi divergences", if by anything,
- a plan's million records by the same, in arrays (`bounds_of`); and where many records share a
  mechanism, by curves of the contour integral that answer for all of them (`upper_bounds_of`).

An evaluator is a function from a normal form to a `Profile`, or to None for other forms. A new one
is a file beside this one and a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from apiece._types import Bounds, Floats, Mask
from apiece.accounting import exact
from apiece.accounting.bounds import (
    DEFAULT,
    Evaluated,
    Evaluations,
    Profile,
    check_bounds,
    find_runs,
    nothing_known,
    within_range,
)
from apiece.accounting.contour.profile import (
    FEWEST_STEPS,
    SampledGaussians,
    epsilon_bounds,
    epsilon_curves,
)
from apiece.accounting.curve import PrivacyCurve, short
from apiece.accounting.exact import (
    AmplifiedProfile,
    GaussianProfile,
    OneStep,
    PureProfile,
    build_pure_profile,
    build_rare_profile,
    enumerate_outcomes,
)
from apiece.accounting.lattice.allocation import AllocatedProfile
from apiece.accounting.lattice.profile import composition
from apiece.accounting.mixture import MixtureProfile
from apiece.accounting.renyi import renyi
from apiece.accounting.selection import SelectedProfile
from apiece.accounting.stated import match_stated
from apiece.errors import ApieceError, InputError, RangeError, UnsupportedError, unknown
from apiece.mechanisms import Allocated, Gaussian, Laplace, Mechanism, Repeated, Sampled, Selected
from apiece.mechanisms.algebra import NormalForm, flatten, flatten_below, require_mechanism
from apiece.mechanisms.mixture import MixtureOfGaussians


def _match_gaussian(steps: NormalForm) -> Profile | None:
    """Return the profile of one Gaussian: flattening has merged all plain ones into it."""
    match steps:
        case ((Gaussian(z), 1),):
            return GaussianProfile(z)
    return None


def _match_one_step(steps: NormalForm) -> Profile | None:
    """Return the profile of one step behind a coin, or of Laplace or a mixture alone."""
    match steps:
        case ((Sampled(Gaussian(z), q), 1),):
            return OneStep(z, q)
        case ((Laplace(scale), 1),):
            return OneStep(scale, 1.0, exact.laplace)
        case ((Sampled(Laplace(scale), q), 1),):
            return OneStep(scale, q, exact.laplace)
        case ((MixtureOfGaussians() as step, 1),):
            return MixtureProfile.of(step)
        case ((Sampled(MixtureOfGaussians() as step, q), 1),):
            return MixtureProfile.of(step, q)
    return None


def _match_sampled_gaussians(steps: NormalForm) -> Profile | None:
    """Return the profile of several sampled Gaussian steps of one kind."""
    match steps:
        case ((Sampled(Gaussian(z), q), times),) if times >= FEWEST_STEPS:
            return SampledGaussians(z, q, times)
    return None


def _match_selected(steps: NormalForm) -> Profile | None:
    """Return the profile of the best of a random number of runs, from the tight ones of a run."""
    match steps:
        case ((Selected(mechanisms, runs), 1),):
            return SelectedProfile.of([choose(part) for part in mechanisms], runs)
    return None


def _match_allocated(steps: NormalForm) -> Profile | None:
    """Return the profile of one Gaussian step of several, drawn at random."""
    match steps:
        case ((Allocated() as step, 1),):
            return AllocatedProfile(step)
    return None


def _match_amplified(steps: NormalForm) -> Profile | None:
    """Return the profile of anything behind one coin, from its own profile."""
    match steps:
        case ((Sampled(inner, q), 1),):
            return AmplifiedProfile(choose(inner), q)
    return None


class Row(NamedTuple):
    """One evaluator: who asks it, how it answers, whether exactly, and why it is asked."""

    evaluator: str
    methods: tuple[str, ...]
    # Its profile of a normal form; None for one that it does not know.
    answer: Callable[[NormalForm], Profile | None]
    # Whether its answer leaves nothing to improve: no later row is asked then.
    exact: bool
    why: str
    # The methods that ask it, in the order of the table, where no other evaluator knows an upper
    # bound.
    spare: tuple[str, ...] = ()


METHODS = ("pld", "rdp", "gdp", "best")
"""What may be asked for: all but "best" are the accountants known by these names."""
BATCH_METHODS = ("pld", "rdp")
"""Those that answer for arrays of sampled Gaussian steps."""
_TIGHT = ("pld", "best")
# The row that arrays are answered by first, and are then not answered by again.
_CONTOURS = "contour integral"
TABLE = (
    Row(
        "nothing released", METHODS, lambda steps: None if steps else PureProfile(0.0), True,
        "no step ever sees the record",
    ),
    Row(
        "pure ε", _TIGHT, build_pure_profile, False,
        "no outcome is likelier in one world by a larger factor",
    ),
    Row(
        "Gaussian formula", ("pld", "gdp", "best"), _match_gaussian, True,
        "plain Gaussians compose to one, whose profile has a closed form",
    ),
    Row(
        "statement", _TIGHT, match_stated, True,
        "of one (ε, δ) that others state the largest profile has a closed form",
    ),
    Row(
        "one-step formula", _TIGHT, _match_one_step, True,
        "one step behind a coin is a change of variables in a closed form",
    ),
    Row(
        "enumeration", _TIGHT, enumerate_outcomes, True,
        "discrete steps with few distinct losses are added up one by one",
    ),
    Row(
        "random allocation", _TIGHT, _match_allocated, True,
        "one step of several is a mean of lognormal ratios, doubled up on cells from both sides",
    ),
    Row(
        _CONTOURS, _TIGHT, _match_sampled_gaussians, False,
        "sampled Gaussian steps of one kind, quickest and closest",
    ),
    Row(
        "chance to take part", _TIGHT, build_rare_profile, False,
        "who takes part at all with a chance of at most δ is covered by δ",
    ),
    Row(
        "private selection", _TIGHT, _match_selected, False,
        "the best of a random number of runs, from the profile of one",
    ),
    Row(
        "loss lattice", _TIGHT, composition, False,
        "takes every composition; asked where nothing above is exact or close enough",
    ),
    Row(
        "amplified profile", ("best",), _match_amplified, False,
        "what a coin leaves of a profile, whatever has it", spare=("pld",),
    ),
    Row(
        "Rényi divergences", ("rdp", "best"), renyi, False,
        "add up under composition, and bound from above alone", spare=("pld",),
    ),
)  # fmt: skip
# Values of δ of one mechanism from which on a curve of upper bounds is quicker than one answer
# after another.
_DELTAS_OF_CURVE = 3


def choose(mechanism: Mechanism, method: str = "pld") -> Evaluations:
    """Return the profile of `mechanism` by the evaluators that the table names."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    # An evaluator may fail where it is made, as where its numbers leave the range.
    try:
        with within_range(lambda: f"{short(mechanism)} by method {method!r}"):
            return _choose_evaluators(flatten(mechanism), flatten_below(mechanism), method)
    except RecursionError:
        raise InputError("mechanism: nested too deep; write equal steps as Repeated") from None


@dataclass(frozen=True, eq=False)
class Between:
    """The profile of a mechanism that lies between two others: each gives one end of the bounds.

    Attributes:
        above: What costs a record no less.
        below: What costs it no more; None where nothing is known of it.
    """

    above: Profile
    below: Profile | None

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε)."""
        return self._ends(self.above.delta(epsilon), lambda below: below.delta(epsilon))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self._ends(self.above.epsilon(delta), lambda below: below.epsilon(delta))

    def _ends(self, above: Bounds, ask: Callable[[Profile], Bounds]) -> Bounds:
        """Return the upper ends of `above`, and the lower ends of what the mechanism below has."""
        if self.below is None:
            return Bounds(np.zeros(above.upper.shape), above.upper)
        return Bounds(ask(self.below).lower, above.upper)


def _choose_evaluators(steps: NormalForm, below: NormalForm, method: str) -> Evaluations:
    """Return the profile of what lies between two normal forms, which nearly always are one.

    Args:
        steps: The mechanism's normal form; where products of coins were rounded, rounded up.
        below: The same with them rounded down, which costs a record no more.
        method: One of `METHODS`.
    """
    answers: list[Evaluated] = []
    errors: list[ApieceError] = []
    for row in TABLE:
        answer = _ask_row(row, steps, below) if method in row.methods else None
        if isinstance(answer, ApieceError):
            # Others may know.
            errors.append(answer)
        elif answer is not None:
            answers.append(answer)
            if row.exact:
                break
    # Made once, and only where they are needed.
    spare = cache(partial(_ask_spare_rows, steps, below, method))
    if not answers:
        answers.extend(spare())
    if not answers and errors:
        raise errors[0]
    if not answers:
        # Of the methods, "gdp" alone has no row for other steps.
        step = next(step for step, _ in steps if not isinstance(step, Gaussian))
        raise UnsupportedError(
            f"method {method!r}: {step!r} is not a plain Gaussian; use method 'pld' or 'rdp'"
        )
    if method == "best":
        # Every evaluator is asked.
        return Evaluations(tuple(answers), spare=spare)
    return Evaluations(tuple(answers), DEFAULT.reached, spare, DEFAULT.resolved)


def _ask_row(row: Row, steps: NormalForm, below: NormalForm) -> Evaluated | ApieceError | None:
    """Return a row's profile, or why it has none; None for a form that it does not know."""
    try:
        with within_range(lambda: row.evaluator):
            profile = row.answer(steps)
    except (UnsupportedError, RangeError) as error:
        return error
    if profile is None:
        return None
    # A product of coins was rounded: the lower ends are those of the form rounded down.
    if below != steps:
        profile = Between(profile, _ask_row_below(row, below))
    return Evaluated(row.evaluator, row.why, profile)


def _ask_row_below(row: Row, steps: NormalForm) -> Profile | None:
    """Return a row's profile of what costs no more; None where it has none."""
    try:
        with within_range(lambda: row.evaluator):
            # Rounded down, the last coin may have become 0: then nothing is released.
            return row.answer(steps) if steps else None
    except (UnsupportedError, RangeError):
        return None


def _ask_spare_rows(steps: NormalForm, below: NormalForm, method: str) -> tuple[Evaluated, ...]:
    """Return who is asked, one after the other, where no other evaluator knows an upper bound."""
    answers = [_ask_row(row, steps, below) for row in TABLE if method in row.spare]
    return tuple(answer for answer in answers if isinstance(answer, Evaluated))


def privacy_curve(mechanism: Mechanism, *, method: str = "pld") -> PrivacyCurve:
    """Return the privacy curve of `mechanism` under add/remove adjacency.

    Args:
        mechanism: What is done to one record.
        method: "pld" (tight, two-sided), "rdp" (upper bound only), "gdp" (exact, for compositions
            of plain Gaussians), or "best" (the tightest of all that can handle the mechanism).

    Raises:
        InputError: For what is no mechanism; `OptionError` for an unknown method.
        UnsupportedError: Where the method cannot handle the mechanism, which is named.
        RangeError: Where losses are past the numerical range.

    Example:
        >>> from apiece import Gaussian, Repeated, Sampled, privacy_curve
        >>> curve = privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.01), 1000))
        >>> print(curve.explain(1e-5))
        1.82823 ≤ ε ≤ 1.82824 at δ = 1e-05, by contour integral: sampled Gaussian steps of one \
kind, quickest and closest
    """
    require_mechanism("privacy_curve", mechanism)
    return PrivacyCurve(choose(mechanism, method), method, mechanism)


def bounds_of(columns: Floats, method: str) -> Bounds:
    """Return bounds on ε for columns (z, q, steps, δ) of sampled Gaussian steps."""
    # Equal mechanisms lie side by side. What contours answer is asked in one array; only what is
    # left, of each mechanism on its own. 0 and ∞ where the arithmetic tells nothing.
    lower, upper = nothing_known(columns[3])
    by_contours = _answered_by_contours(columns, method)
    with within_range(lambda: f"arrays by method {method!r}"):
        lower[by_contours], upper[by_contours] = epsilon_bounds(columns[:, by_contours])
    bounds = Bounds(lower, upper)
    # Through the gate that every evaluator's numbers go through.
    (lower, upper), _ = check_bounds(_CONTOURS, "epsilon", columns[3], bounds)
    unresolved = np.flatnonzero(~DEFAULT.reached(Bounds(lower, upper)))
    if not unresolved.size:
        return Bounds(lower, upper)
    starts, sizes = find_runs(columns[:3, unresolved])
    for start, size in zip(starts, sizes, strict=True):
        entries = unresolved[start : start + size]
        z, q, steps = columns[:3, entries[0]].tolist()
        # As the table has it for one mechanism: the rest of the rows, for all its δ at once.
        profile = choose(Repeated(Sampled(Gaussian(z), q), int(steps)), method)
        # What contours know of them is in `lower` and `upper` already.
        answers = [answer for answer in profile.answers if answer.evaluator != _CONTOURS]
        with within_range(lambda: f"arrays by method {method!r}"):
            known = Bounds(lower[entries], upper[entries])
            tightened = profile.tighten_epsilon(answers, columns[3, entries], known)
            lower[entries], upper[entries] = tightened
    return Bounds(lower, upper)


def _answered_by_contours(columns: Floats, method: str) -> Mask:
    """Return which columns (z, q, steps, …) the table has answered by contours first."""
    _, q, times = columns[:3]
    return np.asarray((q > 0) & (q < 1) & (times >= FEWEST_STEPS) & (method == "pld"))


def upper_bounds_of(columns: Floats, method: str) -> Floats:
    """Return upper bounds on ε, as `bounds_of`, by curves where several δ share a mechanism."""
    # What curves do not answer closely is answered as ever.
    starts, sizes = find_runs(columns[:3])
    shared = _answered_by_contours(columns[:, starts], method) & (sizes >= _DELTAS_OF_CURVE)
    upper = np.full(columns.shape[1], np.inf)
    if shared.any():
        on_curves = np.repeat(shared, sizes)
        with within_range(lambda: "arrays by curves"):
            upper[on_curves] = epsilon_curves(columns[:, on_curves])
    unresolved = ~np.isfinite(upper)
    upper[unresolved] = bounds_of(columns[:, unresolved], method).upper
    return upper


def require_batch(method: str) -> None:
    """Raise `InputError` for a method that arrays are not answered by."""
    if method not in BATCH_METHODS:
        raise unknown("method", method, BATCH_METHODS)
