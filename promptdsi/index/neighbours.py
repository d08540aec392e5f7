"""The documents whose rows point most nearly in the same direction: what an index takes for alike."""

from __future__ import annotations

from typing import NamedTuple

from promptdsi.index.snapshot import Snapshot

NEIGHBOURS = 5


class Neighbour(NamedTuple):
    """A document near another, by the cosine of their rows."""

    docid: str
    title: str
    similarity: float
    corpus: str


def neighbours(snapshot: Snapshot, rows: list[int], k: int = NEIGHBOURS) -> list[list[Neighbour]]:
    """The k nearest living documents of each row, itself apart; nearest first."""
    return [[_neighbour(snapshot, *pair) for pair in found] for found in snapshot.table.neighbours(rows, k)]


def _neighbour(snapshot: Snapshot, row: int, similarity: float) -> Neighbour:
    document = snapshot.document(row)
    return Neighbour(snapshot.table.docids[row], document.title if document else "", similarity, snapshot.place(row).entry.name)
