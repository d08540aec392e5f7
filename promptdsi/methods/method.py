"""The contract every method keeps: constructor keywords are its whole configuration; fit, add, search, save, load.

`fit(corpus)` learns D0, `add(corpus)` the next corpus; both return self. Learned state ends in `_`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import UsageError
from promptdsi.progress import Progress, silent


class Result(NamedTuple):
    """The answer to one query: docids and scores, best first."""

    docids: list[str]
    scores: list[float]


@dataclass(kw_only=True)
class Method(ABC):
    """Base of all methods; a subclass is a dataclass whose fields are its keywords."""

    name: ClassVar[str]
    rehearsal_free: ClassVar[bool]
    at_once: ClassVar[bool] = False  # a reference that learns all new corpora together, in one `add`

    def get_params(self) -> dict[str, Any]:
        """The constructor's keywords: what a manifest stores and an experiment file says."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    @abstractmethod
    def fit(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        """Learn D0 from nothing; a second call starts again."""

    @abstractmethod
    def add(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        """Learn the next corpus."""

    @abstractmethod
    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        """The k best documents of each query; ties by docid."""

    @abstractmethod
    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        """Exact rank, from 1, of the document each query should find, among all documents seen."""

    def trained_parameters(self) -> int:
        """How many numbers the new corpora so far have trained: the paper's "Params."."""
        return 0

    def extra_bytes(self) -> int:
        """What must be kept beside encoder and rows for learning and search to go on."""
        return 0

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write everything learned into a folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote."""


def keywords_of(params: dict[str, Any]) -> dict[str, Any]:
    """Keywords as a constructor takes them, from JSON or TOML, which know lists but no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}


def check_k(k: int) -> int:
    if k < 1:
        raise UsageError(f"k={k}: at least one result must be asked for")
    return k
