"""What a prompt strategy is: it keeps a pool of prompts with keys, and chooses a prefix for each query.

Letters: B batch, D width, L prompted layers, P prefix rows per side, M pool size. The pool grows in blocks, one or more per
corpus; a block that no longer learns is frozen as a whole, so the optimizer cannot even decay it.

Importing a strategy imports no torch: `select` is written once, for torch tensors (training) and numpy arrays (the query engine).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from promptdsi.discovery import import_all
from promptdsi.errors import UsageError
from promptdsi.model.config import PROMPT_LAYERS
from promptdsi.model.path import ArrayT, Selection, array_namespace, unit

if TYPE_CHECKING:
    import torch
    from torch import Tensor


MOST = {"prompt_length": 4096, "pool_size": 1 << 16, "components": 1 << 12}  # what bounds memory: far beyond what is of use
MOST_LAYERS = 1000


def cosine(left: ArrayT, right: ArrayT) -> ArrayT:
    """Cosine of every row with every row: (B, D), (M, D) → (B, M)."""
    return unit(left) @ unit(right).T  # type: ignore[attr-defined, no-any-return]


def concat(blocks: Sequence[Any]) -> Any:
    """Blocks as one array along the first axis; a single block is not copied."""
    return blocks[0] if len(blocks) == 1 else array_namespace(blocks[0]).concat(list(blocks))


def mixed(prefix: Any) -> Any:
    """Prefixes (B, L, 2, P, D) as if (L, 2, B, …) had been reshaped, not permuted, to (L, B, 2, …): query b gets the keys of entry 2b and
    the values of entry 2b + 1 in the list of all keys of the batch, then all values."""
    xp, (batch, layers, sides, *rest) = array_namespace(prefix), prefix.shape
    stacked = xp.permute_dims(prefix, (1, 2, 0, 3, 4))  # (L, 2, B, P, D)
    return xp.permute_dims(xp.reshape(stacked, (layers, batch, sides, *rest)), (1, 0, 2, 3, 4))


class ArrayPool:
    """The pool of a trained strategy as numpy arrays, for search; each kind of block as one array."""

    training = False

    def __init__(self, tensors: Mapping[str, Any], kinds: tuple[str, ...]) -> None:
        self.mean, self.null = tensors.get("mean"), tensors.get("null")
        for kind in kinds:
            names = sorted((name for name in tensors if name.startswith(f"{kind}.")), key=lambda name: int(name.rpartition(".")[2]))
            setattr(self, kind, [concat([tensors[name] for name in names])] if names else [])


class PromptStrategy(ABC):
    """Base of all strategies. A subclass sets `name`, fills the pool in `begin_corpus` and chooses in `select`.

    Keywords shared by all: `prompt_length` counts both sides (20 = 10 key rows + 10 value rows); `prompt_layers` are numbered
    from 1; `center` subtracts the mean selection vector of D0 before any cosine; `prompt_init` is `uniform` (−1, 1) or `small`
    (normal, 0.02); `null_prompt` lets queries that look like D0's go without a prompt; `reselect_per_layer` chooses anew before each
    prompted layer, by the mean of the states entering it, with the same keys (the match term pulls them at the first one only);
    `as_published` mixes the prompts of a batch as the published code does, for an ablation: a query's result then depends on its batch.
    """

    name: ClassVar[str]
    blocks: ClassVar[tuple[str, ...]] = ("prompts", "keys")  # kinds of blocks in the pool
    wants_topics: ClassVar[bool] = False
    chooses: ClassVar[bool] = True  # one prompt per query, rather than a mixture of all
    allowed: ClassVar[dict[str, tuple[str, ...]]] = {"prompt_init": ("uniform", "small"), "key_update": ("sgd", "closed_form")}

    def __init__(
        self,
        *,
        prompt_length: int = 20,
        prompt_layers: tuple[int, ...] = PROMPT_LAYERS,
        prompt_init: str = "uniform",
        center: bool = False,
        null_prompt: bool = False,
        as_published: bool = False,
        reselect_per_layer: bool = False,
        seed: int = 0,
    ) -> None:
        self.prompt_length = prompt_length
        self.prompt_layers = tuple(prompt_layers)
        self.prompt_init = prompt_init
        self.center = center
        self.null_prompt = null_prompt
        self.as_published = as_published
        self.reselect_per_layer = reselect_per_layer
        self.seed = seed

    def get_params(self) -> dict[str, Any]:
        """The constructor's keywords and their values, of this class and its bases."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, PromptStrategy)]
        names = {name for kind in kinds for name in inspect.signature(kind).parameters}
        return {name: getattr(self, name) for name in sorted(names - {"keywords"})}

    # What a subclass writes ---------------------------------------------------------------------------------------------

    def prepare(self, queries: Tensor, topics: Tensor | None = None) -> None:
        """Called once, on D0: its queries' selection vectors (n, D) and the topic of each (n,), where `wants_topics`."""
        self.pool.mean = queries.mean(0)
        if self.null_prompt:
            self.pool.null = unit(self.centered(queries)).mean(0)

    @abstractmethod
    def begin_corpus(self, queries: Tensor) -> None:
        """Called before a new corpus is learned, with its queries' selection vectors (n, D)."""

    @abstractmethod
    def select(self, query: Any) -> Selection:
        """Choose a prefix for each selection vector (B, D), a torch tensor or a numpy array; only training may know the corpus."""

    def hidden(self, query: Any, selection: Selection) -> Any | None:
        """Which queries (B,) are nearer to D0's mean direction than to any key, and go without a prompt; in search, never in training."""
        if self.pool.null is None or self.training or not self.chooses or selection.similarity is None:
            return None
        return cosine(self.centered(query), self.pool.null[None])[:, 0] > selection.similarity

    # What a subclass uses -----------------------------------------------------------------------------------------------

    @cached_property
    def pool(self) -> Any:
        """Prompts, keys and other blocks: torch parameters here, numpy arrays where the query engine sets an `ArrayPool`."""
        from promptdsi.model.dsi import TrainablePool

        return TrainablePool(self.blocks)

    @property
    def prompts(self) -> Any:
        """Blocks of prompts (m, L, 2, P, D)."""
        return self.pool.prompts

    @property
    def keys(self) -> Any:
        """Blocks of keys (m, D)."""
        return self.pool.keys

    @property
    def training(self) -> bool:
        return bool(self.pool.training)

    def append(self, kind: str, block: Tensor, *, learns: bool = True) -> None:
        """Add a block of prompts, keys, … to the pool."""
        self.pool.append(kind, block, learns)

    def freeze(self) -> None:
        """Everything in the pool stops learning: a later optimizer does not see it."""
        self.pool.requires_grad_(False)

    def centered(self, vectors: Any) -> Any:
        """Vectors as they enter a cosine."""
        return vectors - self.pool.mean if self.center and self.pool.mean is not None else vectors

    def similarity(self, query: Any) -> Any:
        """Cosine of each query with each key: (B, M)."""
        return cosine(self.centered(query), concat(self.keys))

    def nearest(self, similarity: Any, count: int) -> Any:
        """The numbers of the keys most similar to each query, best first: (B, N), or (B,) where `count` is 1."""
        if count == 1:
            return similarity.argmax(1)
        return array_namespace(similarity).argsort(-similarity, axis=1, stable=True)[:, :count]

    def choose(self, ids: Any) -> Any:
        """The prompts of the given numbers (B,) or (B, N): (B, L, 2, N P, D), the rows of several one after the other.

        Indexing per query keeps batches independent.
        """
        chosen = concat(self.prompts)[ids]
        if ids.ndim == 2:
            batch, count, layers, sides, rows, width = chosen.shape
            chosen = array_namespace(chosen).permute_dims(chosen, (0, 2, 3, 1, 4, 5)).reshape(batch, layers, sides, count * rows, width)
        return mixed(chosen) if self.as_published else chosen

    def selection(self, ids: Any, similarity: Any, *, match: bool = False) -> Selection:
        """The selection of prompt `ids` (B,) or (B, N) by their keys' `similarity` (B, M); `match` adds 1 − cos of the chosen keys in
        training."""
        xp = array_namespace(similarity)
        chosen = xp.take_along_axis(similarity, ids if ids.ndim == 2 else ids[:, None], axis=1)  # (B, N)
        loss = xp.mean(xp.sum(1 - chosen, axis=1)) if match and self.training else 0.0
        return Selection(self.choose(ids), ids if ids.ndim == 1 else ids[:, 0], chosen[:, 0], loss)

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for the next block of prompts, keys, …: the same for the same seed and number of blocks."""
        from promptdsi.model.dsi import seeded

        return seeded(self.seed, f"{purpose} {len(self.prompts)}")

    def new_prompts(self, count: int, like: Tensor) -> Tensor:
        """A block of new prompts (m, L, 2, P, D)."""
        import torch

        shape = (count, len(self.prompt_layers), 2, self.prompt_length // 2, like.shape[-1])
        if self.prompt_init == "small":
            return (0.02 * torch.randn(shape, generator=self.generator("prompts"))).to(like)
        return (2 * torch.rand(shape, generator=self.generator("prompts")) - 1).to(like)

    def new_keys(self, count: int, like: Tensor) -> Tensor:
        """A block of new keys (m, D), U(−1, 1)."""
        import torch

        return (2 * torch.rand((count, like.shape[-1]), generator=self.generator("keys")) - 1).to(like)

    # Saving and loading -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything learned, by name."""
        return {name: tensor.detach() for name, tensor in self.pool.state_dict().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Replace the pool by a state of `state`, frozen until the next corpus begins."""
        self.pool.load(state)
        return self

    def sizes(self) -> dict[str, int]:
        """Numbers stored: prompts, keys and anything else that is a parameter."""
        return {kind: sum(block.numel() for block in getattr(self.pool, kind)) for kind in self.blocks}


class NoPrompts(PromptStrategy):
    """No prompt at all, only rows learn: the control that shows what prompts add. The same path with an empty prefix."""

    name = "none"

    def begin_corpus(self, queries: Tensor) -> None:
        pass

    def select(self, query: Any) -> Selection:
        return Selection(prefix=None)


def strategies() -> dict[str, type[PromptStrategy]]:
    """Every strategy that is imported, those of this folder always."""
    from promptdsi.model import prompts

    import_all(prompts)
    return {kind.name: kind for kind in sorted(_subclasses(PromptStrategy), key=lambda kind: kind.name)}  # type: ignore[type-abstract]


def make_strategy(name: str, **keywords: Any) -> PromptStrategy:
    """A strategy by name; keywords it does not have are an error."""
    kinds = strategies()
    if name not in kinds:
        raise UsageError(f"no prompt strategy {name!r}; there are {', '.join(kinds)}")
    try:
        strategy = kinds[name](**keywords)
    except TypeError as error:
        raise UsageError(f"prompt strategy {name}: {error}") from None
    for option, values in strategy.allowed.items():
        if getattr(strategy, option, values[0]) not in values:
            raise UsageError(f"prompt strategy {name}: {option}={getattr(strategy, option)!r} is none of {', '.join(values)}")
    for option, most in MOST.items():
        if type(size := getattr(strategy, option, 0)) is not int or size > most:
            raise UsageError(f"prompt strategy {name}: {option}={size!r} is more than {most} or no whole number")
    if any(type(layer) is not int or layer < 1 for layer in strategy.prompt_layers) or len(strategy.prompt_layers) > MOST_LAYERS:
        raise UsageError(f"prompt strategy {name}: prompt_layers are numbers of layers, from 1, at most {MOST_LAYERS} of them")
    if strategy.prompt_length < 0 or strategy.prompt_length % 2:
        raise UsageError(f"prompt_length={strategy.prompt_length} counts key and value rows together: it must be even and not negative")
    return strategy


def _subclasses(kind: type[PromptStrategy]) -> Iterator[type[PromptStrategy]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)
