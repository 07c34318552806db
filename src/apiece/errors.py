"""Everything that apiece raises on purpose.

ApieceError
├── InputError (ValueError)          a value is outside its bounds; the command line exits with 2
│   ├── BudgetError                  ε, δ or Δ̄ of some record
│   ├── DataError                    a file, a column, a label, a record id
│   ├── OptionError                  an unknown or misspelled name; lists the known ones
│   ├── UnsupportedError             a mechanism, layer or format the method cannot handle
│   │   ├── NotDifferentiableError   a function with a kink, a pole or a jump in its domain
│   │   └── NotInstalledError        a package of an extra, which is a ModuleNotFoundError too
│   ├── ExpressionError              text that is not an expression over named attributes
│   │   └── AttributeRangeError      an attribute without a range, or with an unbounded one
│   ├── ComplexValueError            an expression that leaves the real numbers
│   ├── AnalysisError                an analysis id that is unknown, used up or taken
│   └── InfeasibleError              nothing meets the request; says what to change
├── RangeError (ArithmeticError)     past the numerical range: no number returned would be a bound
├── VerificationError                a plan's recomputed guarantee is not what was asked
└── StateError                       a run folder, checkpoint or ledger that cannot be used as asked
    └── AnalysisError                the same as above

SlowPathWarning (UserWarning)        a model is clipped exactly, but by a slower path than others
UntestedVersionWarning (UserWarning) torch is newer than what the proof was tested with
IdleParameterWarning (UserWarning)   parameters are trained that nothing but noise moves
StewardWarning (UserWarning)         something of the rows, for the eyes of those who hold them
UnspentBudgetWarning (UserWarning)   a group can spend less than .8 of the ε that it asked

Messages are one line: what, where, the value, the bound, the remedy.
"""

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar


class ApieceError(Exception):
    """Root of all errors raised on purpose."""


class InputError(ApieceError, ValueError):
    """A value given by the caller is outside its bounds."""


class SlowPathWarning(UserWarning):
    """A model is clipped exactly, but by a slower path than most."""


class IsolationWarning(UserWarning):
    """Records run alone in one process, where only a comparison guards what they leave behind."""


class UntestedVersionWarning(UserWarning):
    """A package is newer than the newest version with which a guarantee was tested."""


class IdleParameterWarning(UserWarning):
    """Parameters are trained that nothing but noise moves, or would move."""


class StewardWarning(UserWarning):
    """It speaks of rows, which is data about people: for the eyes of those who hold them."""


class FittedStepWarning(UserWarning):
    """A step before an estimator in a pipeline learned from rows, which no ε accounts for."""


class UnspentBudgetWarning(UserWarning):
    """A group of a plan can spend less than .8 of the ε that it asked."""


class BudgetError(InputError):
    """A record's epsilon, delta or excess bound cannot be a budget."""


class DataError(InputError):
    """A file, column, label or record id is not what it must be."""


class OptionError(InputError):
    """A name that apiece does not know."""


class UnsupportedError(InputError):
    """A mechanism, layer or format that the chosen method cannot handle."""


class NotDifferentiableError(UnsupportedError):
    """A function has a kink, a pole or a jump where its derivative is needed."""


class NotInstalledError(UnsupportedError, ModuleNotFoundError):
    """A package that an extra brings is not installed; `name` is that of the module."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.msg = message
        self.name = name


class ExpressionError(InputError):
    """A text is not an expression over named attributes."""


class AttributeRangeError(ExpressionError):
    """An attribute has no declared range, or one that is empty or unbounded."""


class ComplexValueError(InputError):
    """An expression is not real somewhere in the declared ranges."""


class InfeasibleError(InputError):
    """No plan, parameter or release meets the request."""


class RangeError(ApieceError, ArithmeticError):
    """The request lies past the numerical range, so no number returned would be a bound."""


class VerificationError(ApieceError):
    """A plan's guarantee, recomputed from the plan alone, is not the one that was asked."""


class StateError(ApieceError):
    """A run folder, checkpoint or ledger cannot be used in the way asked."""


class AnalysisError(InputError, StateError):
    """An analysis id is unknown to the ledger, used up, or stands for something else."""


ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on the command line", default=False)
"""Whether a message is for the command line, which sets this; nothing else does."""

# Parameters that are given as a field of another value, and the form of that value.
_HOLDERS = dict.fromkeys(("separator", "decimal", "encoding"), "dialect=Dialect({})")


def as_given(name: str, value: object = None, *, flag: str | None = None) -> str:
    """Return a parameter as the reader of a message gives it: in Python, or as an option.

    flag: the option as it is written, where name and value do not make it.
    """
    if not ON_COMMAND_LINE.get():
        if value is None:
            return name
        return _HOLDERS.get(name, "{}").format(f"{name}={value!r}")
    if flag is not None:
        return flag
    option = f"--{name.replace('_', '-')}"
    if value is None:
        return option
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={item}" for key, item in value.items())
    return f"{option} {shlex.quote(str(value))}"


def unknown(kind: str, name: object, known: Iterable[str]) -> OptionError:
    """Return the error for an unknown `name` of some `kind`, with the nearest known one."""
    names = sorted(known)
    if not names:
        return OptionError(f"{kind}: unknown name {name!r}; there are none; leave it out")
    nearest = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return OptionError(f"{kind}: unknown name {name!r}; {hint}(known: {', '.join(names)})")


def together(errors: Sequence[InputError]) -> InputError:
    """Return one error with the messages of several in one line, or the only one there is.

    >>> print(together([InputError("steps: missing"), InputError("records: missing")]))
    2 things to mend: (1) steps: missing; (2) records: missing
    """
    if len(errors) == 1:
        return errors[0]
    # Mistakes of one kind keep it, so that whoever catches that kind catches them together.
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else InputError
    messages = "; ".join(f"({number}) {error}" for number, error in enumerate(errors, start=1))
    return kind(f"{len(errors)} things to mend: {messages}")
