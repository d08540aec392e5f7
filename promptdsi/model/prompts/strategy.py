"""What a prompt strategy is: it keeps a pool of prompts with keys, and chooses a prefix for each query.

Letters: B batch, D width, L prompted layers, P prefix rows per side, M pool size. The pool grows in blocks, one or more per
corpus; a block that no longer learns is frozen as a whole, so the optimiser cannot even decay it.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptdsi.model.config import PROMPT_LAYERS


class Selection(NamedTuple):
    """What a strategy chose for a batch.

    `prefix` is (B, L, 2, P, D), or None for no prompt; `loss` pulls keys to queries (0 where keys do not learn so);
    `ids` (B,) is the prompt each query chose (NO_PROMPT where it goes without) and `similarity` (B,) how close its key was.
    """

    prefix: Tensor | None
    loss: Tensor
    ids: Tensor | None = None
    similarity: Tensor | None = None


class PromptStrategy(nn.Module, ABC):
    """Base of all strategies. A subclass sets `name`, fills the pool in `begin_corpus` and chooses in `select`.

    Keywords shared by all: `prompt_length` counts both sides (20 = 10 key rows + 10 value rows); `prompt_layers` are numbered
    from 1; `center` subtracts the mean selection vector of D0 before any cosine; `prompt_init` is `uniform` (−1, 1) or `small`
    (normal, 0.02); `null_prompt` lets queries that look like D0's go without a prompt.
    """

    name: ClassVar[str]
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
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.prompt_length = prompt_length
        self.prompt_layers = tuple(prompt_layers)
        self.prompt_init = prompt_init
        self.center = center
        self.null_prompt = null_prompt
        self.seed = seed
        self.prompts = nn.ParameterList()  # blocks (m, L, 2, P, D)
        self.keys = nn.ParameterList()  # blocks (m, D)
        self.register_buffer("mean", None)  # (D,), the mean selection vector of D0

        self.register_buffer("null", None)  # (D,), the key of no prompt at all

    mean: Tensor | None
    null: Tensor | None

    def get_params(self) -> dict[str, Any]:
        """The constructor's keywords and their values, of this class and its bases."""
        names = {name for kind in type(self).__mro__ for name in inspect.signature(kind).parameters if issubclass(kind, PromptStrategy)}
        return {name: getattr(self, name) for name in sorted(names - {"keywords"})}

    # What a subclass writes ---------------------------------------------------------------------------------------------

    def prepare(self, queries: Tensor, topics: Tensor | None = None) -> None:
        """Called once, while D0 is at hand: its queries' selection vectors (n, D) and the topic of each (n,), where wanted."""
        self.mean = queries.mean(0)
        if self.null_prompt:
            self.null = unit(self.centred(queries)).mean(0)

    @abstractmethod
    def begin_corpus(self, queries: Tensor) -> None:
        """Called before a new corpus is learned, with its queries' selection vectors (n, D)."""

    @abstractmethod
    def select(self, query: Tensor) -> Selection:
        """Choose a prefix for each selection vector (B, D). In training mode it may know the corpus; at test time never."""

    def hidden(self, query: Tensor, selection: Selection) -> Tensor | None:
        """Which queries (B,) look more like D0's than like any key, and keep the unprompted path; in search, never in training."""
        if self.null is None or self.training or not self.chooses or selection.similarity is None:
            return None
        return cosine(self.centred(query), self.null[None])[:, 0] > selection.similarity

    # What a subclass uses -----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Everything in the pool stops learning: a later optimiser does not see it."""
        self.requires_grad_(False)

    def centred(self, vectors: Tensor) -> Tensor:
        """Vectors as they enter a cosine."""
        return vectors - self.mean if self.center and self.mean is not None else vectors

    def similarity(self, query: Tensor) -> Tensor:
        """Cosine of each query with each key: (B, M)."""
        return cosine(self.centred(query), torch.cat(list(self.keys)))

    def choose(self, ids: Tensor) -> Tensor:
        """The prompts of the given numbers: (B, L, 2, P, D). Indexing per query keeps batches independent."""
        return torch.cat(list(self.prompts))[ids]

    def generator(self, purpose: str) -> torch.Generator:
        """Fresh randomness for the next block of prompts, keys, …: the same for the same seed and place in the stream."""
        return seeded(self.seed, f"{purpose} {len(self.prompts)}")

    def new_prompts(self, count: int, like: Tensor) -> Tensor:
        """A block of new prompts (m, L, 2, P, D)."""
        shape = (count, len(self.prompt_layers), 2, self.prompt_length // 2, like.shape[-1])
        if self.prompt_init == "small":
            return (0.02 * torch.randn(shape, generator=self.generator("prompts"))).to(like)
        return (2 * torch.rand(shape, generator=self.generator("prompts")) - 1).to(like)

    def new_keys(self, count: int, like: Tensor) -> Tensor:
        """A block of new keys (m, D), U(−1, 1)."""
        return (2 * torch.rand((count, like.shape[-1]), generator=self.generator("keys")) - 1).to(like)

    # Keeping and loading ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything learned, by name."""
        return {name: tensor.detach() for name, tensor in self.state_dict().items()}

    def load_state(self, state: dict[str, Tensor]) -> Self:
        """Take over a state; blocks are made as the names ask, frozen until the next corpus begins."""
        for name in sorted(state, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")]):
            owner, _, place = name.partition(".")
            if place:
                getattr(self, owner).append(nn.Parameter(state[name].clone(), requires_grad=False))
            else:
                setattr(self, owner, state[name].clone())
        return self

    def sizes(self) -> dict[str, int]:
        """Numbers stored: prompts, keys and anything else that is a parameter."""
        return {
            name: sum(block.numel() for block in blocks) for name, blocks in self.named_children() if isinstance(blocks, nn.ParameterList)
        }


def seeded(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose; different purposes never draw the same numbers."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine of every row with every row, with a floor under the root: (B, D), (M, D) → (B, M)."""
    return unit(left) @ unit(right).T


def unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1, eps=1e-6)
