"""What every format reads and writes, and what it must offer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import Document, Judgement, Query


class Parts(NamedTuple):
    """The contents of a corpus, before it has a name. `qrels` holds a list per split that has judgements."""

    documents: list[Document]
    queries: list[Query]
    qrels: dict[str, list[Judgement]]


class Format(Protocol):
    """A module of this folder: one way to keep a corpus on disk."""

    def recognises(self, path: Path) -> bool:
        """Whether the path looks like this format (by name and kind of file, without reading it)."""

    def read(self, path: Path, notes: ReadNotes, *, max_unknown: int, splits: Sequence[str]) -> Parts:
        """Read strictly; errors carry file and line. Judgements of other splits are not even opened, where they stand apart."""

    def write(self, parts: Parts, path: Path) -> None:
        """Write what `read` gives back equal, or raise ValueError for what this format cannot hold."""
