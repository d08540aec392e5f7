"""A corpus in a generation: the blobs that hold it, and what its documents arrived as."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from promptdsi.index.file_checks import PARTS

SMALL = 2_048  # rows: opening copies smaller corpora into one, as the engine's SMALL_BLOCK and SMALL_POSTINGS say


class Arrival(NamedTuple):
    """Documents that arrived together: the name of their corpus, their generation, how many, and the folder they were read from."""

    name: str
    since: int
    documents: int
    source: str | None = None
    prefix: str = ""
    part: int = 0  # of a large corpus


class PlacedArrival(NamedTuple):
    """An arrival, the entry that its documents are in, their positions in it, and their numbers in the generation."""

    arrival: Arrival
    entry: Entry
    positions: range
    numbers: range


@dataclass(frozen=True)
class Entry:
    """A corpus in a generation, or a part of a large one: its blobs, in the order of its rows."""

    name: str
    since: int  # the generation it arrived in
    count: int  # documents, deleted ones included
    rows: str
    ids: str
    passages: int = 0  # rows, where long documents have several; 0: one for each document
    words: str | None = None  # None where words do not count
    documents: str | tuple[tuple[str, int], ...] | None = None  # several, with the positions they begin at, where `add` merged corpora
    probes: str | None = None
    queries: str | None = None
    fast: bool = False  # added without training
    source: str | None = None  # the folder of files it was read from
    prefix: str = ""  # what was put before paths in that folder, to make docids
    merged: tuple[Arrival, ...] = ()  # the small corpora that were merged into this one, in their order
    part: int = 0  # a corpus of many passages is several entries, one after the other: 0, 1, 2, …

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """The corpora that these documents arrived as: more than one where small ones were merged."""
        return self.merged or (Arrival(self.name, self.since, self.count, self.source, self.prefix, self.part),)

    def arrival_of(self, position: int) -> Arrival:
        """The corpus that a document arrived with."""
        return self.place_of(position)[0]

    def place_of(self, position: int) -> tuple[Arrival, int]:
        """The corpus that a document arrived with, and its position in that."""
        number = bisect.bisect_right(self._ends, position)
        return self.arrivals[number], position - (self._ends[number - 1] if number else 0)

    def spans(self) -> list[tuple[int, int]]:
        """Where the documents of each arrival begin and end."""
        return list(itertools.pairwise([0, *self._ends]))

    @cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(arrival.documents for arrival in self.arrivals))

    @property
    def row_count(self) -> int:
        return self.passages or self.count

    @property
    def is_small(self) -> bool:
        """Whether it may be merged with others."""
        return self.is_settled and self.row_count < SMALL

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do with it or to measure by it, and it is no part of another."""
        return not (self.fast or self.probes or self.queries or self.part)

    @cached_property
    def document_files(self) -> list[tuple[str, range]]:
        """The files of the stored documents, each with the positions it covers; none where nothing of them is stored."""
        files = self.documents or ()
        files = ((files, 0),) if isinstance(files, str) else files
        ends = [*(start for _, start in files[1:]), self.count]
        return [(name, range(start, end)) for (name, start), end in zip(files, ends, strict=False)]

    def files(self, part: str) -> list[str]:
        """The blobs of a part: none, one, or several of documents."""
        if part == "documents":
            return [name for name, _ in self.document_files]
        return [name] if (name := getattr(self, part)) is not None else []

    def blobs(self) -> Iterator[str]:
        yield from (name for part in PARTS for name in self.files(part))
