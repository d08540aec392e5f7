"""What a pseudo-query generator is: keywords in, a list of queries per document out."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from promptdsi.corpus.records import Document


class Generator(ABC):
    """Writes queries that should find a document, from that document alone.

    A subclass's constructor keywords are its whole configuration and what the cache is keyed by, together with the
    document's content. Generators that sample draw a batch at a time, so which queries of the same kind they draw may
    depend on the batch; what was drawn once is kept.
    """

    NAME: ClassVar[str]
    batch_size: ClassVar[int] = 1
    not_in_key: ClassVar[frozenset[str]] = frozenset({"device", "offline", "quiet"})  # where it runs, not what it writes

    per_document: int
    seed: int

    def get_params(self) -> dict[str, Any]:
        """The constructor's keywords and their values."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def key(self) -> dict[str, Any]:
        """What the queries of a given document depend on."""
        return {"generator": self.NAME} | {name: value for name, value in self.get_params().items() if name not in self.not_in_key}

    @abstractmethod
    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        """Yield the raw queries of each document in turn; called with at most `batch_size` documents."""


def tidy(queries: Sequence[str], limit: int) -> list[str]:
    """White space collapsed, empty ones and repeats (ignoring case) dropped, at most `limit`.

    Examples
    --------
    >>> tidy(["who  wrote it", "", "Who wrote it"], 5)
    ['who wrote it']
    """
    unique: dict[str, str] = {}
    for query in queries:
        if words := " ".join(query.split()):
            unique.setdefault(words.casefold(), words)
    return list(unique.values())[:limit]


def batch_seed(seed: int, documents: Sequence[Document]) -> int:
    """A seed from the batch's content: a run that is resumed samples what it would have sampled."""
    content = "\0".join(f"{document.title}\0{document.text}" for document in documents)
    return int(hashlib.sha256(f"{seed}\0{content}".encode()).hexdigest()[:8], 16)
