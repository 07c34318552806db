"""What a statement is bound to: digests of the weights, the plan, the ledger's head and the run.

They show that files belong together, not who wrote them: whoever can write all of them can make
others that agree. What a statement says of a training is its author's word.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from apiece._types import Json
from apiece.errors import DataError, InputError

if TYPE_CHECKING:
    import torch

FORMAT = "apiece privacy statement 3"
MEANS = (
    "SHA-256 of the weights, and of the plan and of all else in the run folder under a salt that "
    "metrics.json has; they are compared whenever the model or its folder is loaded"
)
WORD = (
    "its author's word: without a signature nothing shows who wrote this statement, nor that the "
    "training was as it says"
)
_REMEDY = "give it as apiece train wrote it"


@dataclass(frozen=True, slots=True)
class Bound:
    """What binds a run's statement, as its folder keeps it.

    Attributes:
        weights: The digest of the model that is kept.
        config: The digest of config.toml, but for where the folder lies.
        salt: Keeps the statement from telling anything of the plan and the figures: whoever has
            not the folder cannot confirm a guess.
        head: The ledger's number:digest after the release was recorded in it, None without one.
    """

    weights: str
    config: str
    salt: str
    head: str | None

    @classmethod
    def of(
        cls, state: Mapping[str, torch.Tensor], config: Any, seed: int | None, head: str | None
    ) -> Bound:
        """Return what binds a run with these weights and this config.

        Args:
            state: The parameters by name.
            config: As it is read back.
            seed: Of an experiment; it makes the salt, so that the folder can be repeated.
            head: As the attribute.
        """
        return cls(weights_digest(state), config_digest(config), salt_of(seed), head)

    def said(self, plan: Any, metrics: Any) -> Json:
        """Return the statement's part, of JSON values as they are stored.

        Args:
            plan: Of plan.json.
            metrics: Of metrics.json.
        """
        return {
            "weights": self.weights,
            "plan": self._under_salt("plan", plan),
            "run": self._under_salt("run", metrics),
            "ledger": self.head,
            "means": MEANS,
            "signature": WORD,
        }

    def to_dict(self) -> Json:
        """Return it as JSON types."""
        return asdict(self)

    def _under_salt(self, name: str, value: Any) -> str:
        content = name.encode() + b"\0" + _canonical(value)
        return hmac.new(bytes.fromhex(self.salt), content, hashlib.sha256).hexdigest()


def salt_of(seed: int | None) -> str:
    """Return a fresh salt, or that of a seed.

    Args:
        seed: Of an experiment.
    """
    if seed is None:
        return secrets.token_hex(16)
    return hashlib.sha256(f"apiece salt {seed}".encode()).hexdigest()[:32]


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of parameters: their names in order, types, shapes and bytes.

    Args:
        state: By name, as `state_dict` gives it.
    """
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if not isinstance(value, torch.Tensor):
            raise InputError(f"state: {name!r} is not a tensor; give model.state_dict()")
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        head = f"{name}|{value.dtype}|{tuple(value.shape)}|"
        digest.update(head.encode() + array.tobytes())
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever its spaces and the order of its names.

    Args:
        value: As it was read.
    """
    return hashlib.sha256(_canonical(value)).hexdigest()


def config_digest(config: Any) -> str:
    """Return the digest of a config, wherever its folder lies.

    Args:
        config: As it was read.
    """
    run = {name: value for name, value in config.get("run", {}).items() if name != "out"}
    return digest_of({**config, "run": run})


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sealed(statement: Json) -> Json:
    """Return a statement with the digest of all that it says.

    Args:
        statement: Without one.
    """
    return {**statement, "digest": digest_of(statement)}


def require_sealed(statement: Any, where: str) -> Json:
    """Return a statement, or raise `DataError` where a word of it was changed, or it is of old.

    Args:
        statement: As it was read.
        where: The file.
    """
    if not isinstance(statement, dict):
        raise DataError(f"{where}: its statement is no object; {_REMEDY}")
    if statement.get("statement") != FORMAT:
        raise DataError(
            f"{where}: its statement is not in the format {FORMAT!r}, and so bound to nothing; "
            "read it with the apiece that wrote it, or train again"
        )
    said = {name: value for name, value in statement.items() if name != "digest"}
    if statement.get("digest") != digest_of(said):
        raise DataError(f"{where}: its statement was changed after it was made; {_REMEDY}")
    if not isinstance(statement.get("bound_to"), dict):
        raise DataError(f"{where}: its statement is bound to nothing; {_REMEDY}")
    return statement


def require_same_digest(found: Any, said: Any, what: str, where: str) -> None:
    """Raise `DataError` where a part is not that to which the statement is bound.

    Args:
        found: Its digest.
        said: That in the statement.
        what: The part.
        where: The file.
    """
    if found != said:
        raise DataError(f"{where}: {what} is not what its statement is bound to; {_REMEDY}")
