"""The contract every method keeps: constructor keywords are its whole configuration; fit, add, search, save, load.

`fit(corpus)` trains on the first corpus, D0; `add(corpus)` on the next one. Both return self. Learned state ends in `_`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus
from promptdsi.discovery import import_all
from promptdsi.errors import UsageError
from promptdsi.methods.options import check_params, current_params, flatten_params, keywords_from, nest_params, params_of
from promptdsi.progress import Progress, silent


class Result(NamedTuple):
    """The documents retrieved for one query: docids and scores, best first."""

    docids: list[str]
    scores: list[float]


@dataclass(kw_only=True)
class Method(ABC):
    """Base of all methods; a subclass is a dataclass whose fields are its keywords."""

    name: ClassVar[str]
    rehearsal_free: ClassVar[bool]
    at_once: ClassVar[bool] = False  # a reference that trains on all new corpora together, in one `add`

    # Removed options with which a saved method was made: it still searches, but cannot train as it was configured to.
    retired: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def get_params(self) -> dict[str, Any]:
        """The constructor's keywords as a nested dictionary: what a manifest stores and `from_params` takes."""
        return params_of(self) | ({"retired": self.retired} if self.retired else {})

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """A method from nested parameters, dotted ones or the flat names of earlier releases; the rest has its defaults."""
        defaults = flatten_params(params_of(cls()))
        current = current_params(params, defaults)
        retired = current.pop("retired", {})
        method = cls(**keywords_from(cls, nest_params(check_params(cls.name, flatten_params(current), defaults))))
        method.retired = retired
        return method

    @abstractmethod
    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Train on D0 from scratch; a second call starts again.

        `checkpoint` is a folder in which long training saves its state now and then: killed and called again, it goes on from there.
        """

    @abstractmethod
    def add(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Train on the next corpus. `checkpoint` as in `fit`."""

    @abstractmethod
    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        """The k best documents of each query; ties by docid."""

    @abstractmethod
    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        """Exact rank, from 1, of each query's relevant document among all documents seen."""

    def trained_parameters(self) -> int:
        """How many numbers the new corpora so far have trained: the paper's "Params."."""
        return 0

    def extra_bytes(self) -> int:
        """Bytes beside encoder and rows without which training or search could not go on."""
        return 0

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write everything learned into a folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote."""


def check_k(k: int) -> int:
    if k < 1:
        raise UsageError(f"k={k}: at least one result must be asked for")
    return k


def methods() -> dict[str, type[Method]]:
    """Every method of this folder, by name."""
    from promptdsi import methods as package

    kinds: dict[str, type[Method]] = {}
    for module in import_all(package):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Method) and "name" in vars(kind):
                kinds[kind.name] = kind
    return dict(sorted(kinds.items()))
