"""A mechanism as JSON types and back: {kind: fields}, the kind in snake case."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any, get_args

from apiece import _json
from apiece._types import Json
from apiece.errors import InputError, unknown
from apiece.mechanisms.algebra import Composed, Mechanism

_KINDS: dict[str, Any] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(Mechanism)
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_dict(mechanism: Mechanism) -> Json:
    """Return `mechanism` as nested dictionaries of JSON types, read back by `from_dict`.

    Args:
        mechanism: Any mechanism.

    Example:
        >>> from apiece.mechanisms import Gaussian, Sampled
        >>> to_dict(Sampled(Gaussian(1.0), 0.5))
        {'sampled': {'mechanism': {'gaussian': {'noise_multiplier': 1.0}}, 'probability': 0.5}}
    """
    names = [field.name for field in fields(mechanism)]
    return {_NAMES[type(mechanism)]: {name: _plain(getattr(mechanism, name)) for name in names}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return to_dict(value) if type(value) in _NAMES else value


def from_dict(data: Any) -> Mechanism:
    """Return the mechanism that `to_dict` described.

    Args:
        data: What `to_dict` returned, or JSON that claims to be that; nothing of it is believed.

    Raises:
        InputError: Where it describes no mechanism; `OptionError` for an unknown kind.

    Example:
        >>> from_dict({"gaussian": {"noise_multiplier": 2.0}})
        Gaussian(noise_multiplier=2.0)
    """
    if not isinstance(data, dict) or len(data) != 1:
        raise InputError(f"mechanism: {data!r} is not of the form {{kind: fields}}")
    ((name, given),) = data.items()
    if name not in _KINDS:
        raise unknown("mechanism", name, _KINDS)
    kind = _KINDS[name]
    wanted = {field.name for field in fields(kind)}
    if not isinstance(given, dict) or set(given) != wanted:
        raise InputError(f"mechanism {name}: {given!r} must have just {sorted(wanted)}")
    if kind is Composed:
        parts = given["mechanisms"]
        if not isinstance(parts, list):
            raise InputError("mechanism composed: 'mechanisms' must be a list")
        return Composed(*map(from_dict, parts))
    inner = {key: from_dict(value) for key, value in given.items() if key == "mechanism"}
    found: Mechanism = kind(**(given | inner))
    return found


def to_json(mechanism: Mechanism) -> str:
    """Return `mechanism` as one line of JSON.

    Args:
        mechanism: Any mechanism.

    Example:
        >>> from apiece.mechanisms import Laplace
        >>> to_json(Laplace(2.0))
        '{"laplace": {"noise_multiplier": 2.0}}'
    """
    return json.dumps(to_dict(mechanism), allow_nan=False)


def from_json(text: str) -> Mechanism:
    """Return the mechanism in a JSON text.

    Args:
        text: What `to_json` returned.

    Raises:
        InputError: Where it is no JSON, gives a field twice, or describes no mechanism.

    Example:
        >>> from_json('{"laplace": {"noise_multiplier": 2.0}}')
        Laplace(noise_multiplier=2.0)
    """
    return from_dict(_json.loads(text, "mechanism"))
