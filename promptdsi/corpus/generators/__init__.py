"""Pseudo-query generators by name. A new one is one file here with a subclass of `Generator`; nothing else lists it."""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from promptdsi.corpus.corpus import Document
from promptdsi.discovery import import_all
from promptdsi.errors import UsageError


@dataclass(kw_only=True)
class Generator(ABC):
    """Writes queries that should retrieve a document, from that document alone.

    The fields of a subclass are its configuration; the cache is keyed by them and by the document's content. Generators that
    sample draw a batch at a time, so their queries may depend on the batch; the cache keeps what was drawn first.
    """

    NAME: ClassVar[str]
    batch_size: ClassVar[int] = 1
    not_in_key: ClassVar[frozenset[str]] = frozenset({"device", "offline", "quiet"})  # where it runs, not what it writes

    per_document: int = 5
    seed: int = 0

    def key(self) -> dict[str, Any]:
        """What the queries of a given document depend on."""
        return {"generator": self.NAME} | {name: value for name, value in asdict(self).items() if name not in self.not_in_key}

    def load(self) -> None:  # noqa: B027  # most generators have no model to load
        """Load its model, if it has one: an error where that cannot be done."""

    def documents_at_once(self) -> int:
        """How many documents `generate` is called with, at most."""
        return self.batch_size

    @abstractmethod
    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        """Yield the raw queries of each document in turn."""


def generators() -> dict[str, type[Generator]]:
    """All generators by name. Importing them is cheap: each loads its model's libraries when it first generates."""
    import_all(sys.modules[__name__])
    return {generator.NAME: generator for generator in sorted(Generator.__subclasses__(), key=lambda generator: generator.NAME)}


def options_of(name: str) -> list[str]:
    """The keywords of a generator; `device` is among them if it runs a model."""
    available = generators()
    if name not in available:
        raise UsageError(f"no generator {name!r}; there are {', '.join(available)}")
    return [option.name for option in fields(available[name])]


def make_generator(name: str, **keywords: Any) -> Generator:
    """Make a generator by name; unknown keywords are an error that names the known ones."""
    options = options_of(name)
    if set(keywords) - set(options):
        raise UsageError(f"generator {name} has the options {', '.join(options)}; got {', '.join(keywords)}")
    return generators()[name](**keywords)


def unique_queries(queries: Sequence[str], limit: int) -> list[str]:
    """At most `limit` queries: white space collapsed, empty ones and repeats (ignoring case) dropped.

    Examples
    --------
    >>> unique_queries(["who  wrote it", "", "Who wrote it"], 5)
    ['who wrote it']
    """
    unique: dict[str, str] = {}
    for query in queries:
        if text := " ".join(query.split()):
            unique.setdefault(text.casefold(), text)
    return list(unique.values())[:limit]


def batch_seed(seed: int, documents: Sequence[Document]) -> int:
    """A seed from the batch's content, so that a resumed run samples what it would have sampled."""
    content = "\0".join(f"{document.title}\0{document.text}" for document in documents)
    return int(hashlib.sha256(f"{seed}\0{content}".encode()).hexdigest()[:8], 16)
