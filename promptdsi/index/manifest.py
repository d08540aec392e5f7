"""A manifest: the description of one generation. `index/deltas.py` says how it is stored."""

from __future__ import annotations

import bisect
import contextlib
import datetime
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from promptdsi.errors import DataError
from promptdsi.index.entry import Arrival, Entry, PlacedArrival
from promptdsi.index.file_checks import PARTS
from promptdsi.index.results import CorpusSummary, FolderSummary, IndexSummary
from promptdsi.index.sealed import FORMAT

INCONSISTENT: tuple[type[Exception], ...] = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)  # by wrong files


@dataclass(frozen=True)
class Manifest:
    """One generation. `metadata` is what the method learned beside weights; `event` describes what made this generation, in counts."""

    number: int
    parent: int | None
    kind: str
    time: str
    method: str
    params: dict[str, Any]
    config: dict[str, Any]
    encoder: str
    tokenizer: str
    store: str
    metadata: dict[str, Any]
    prompts: dict[str, str]  # name of a tensor → the blob that holds it
    corpora: tuple[Entry, ...]
    statistics: str | None = None  # the blob by which words are weighted
    tombstones: tuple[int, ...] = ()  # numbers of deleted documents, counted over all corpora
    event: dict[str, Any] = field(default_factory=dict)
    erase: dict[str, str] = field(default_factory=dict)  # blobs this purge removes from all generations → their replacements
    pruned: tuple[int, ...] = ()  # generations that this prune removes
    sizes: Mapping[str, int] = field(default_factory=dict)  # of its blobs; others of the same index may be in it
    retired: tuple[str, ...] = ()  # blobs that only earlier generations need
    format: int = FORMAT
    written_by: str = ""

    def blobs(self) -> set[str]:
        """Every blob this generation needs."""
        names = {self.encoder, self.tokenizer, *self.prompts.values(), *(name for entry in self.corpora for name in entry.blobs())}
        return names | ({self.statistics} if self.statistics else set())

    @property
    def documents(self) -> int:
        """Documents that can be retrieved."""
        return sum(entry.count for entry in self.corpora) - len(self.tombstones)

    @property
    def trains_model(self) -> bool:
        """Whether the encoder or prompts learn from documents, not rows alone."""
        return bool(self.prompts) or self.params.get("fit", {}).get("learn", "everything") == "everything"

    def parts(self) -> list[range]:
        """The numbers of the entries of each corpus: one, or several of a large corpus."""
        firsts = [number for number, entry in enumerate(self.corpora) if not entry.part]
        return [range(*bounds) for bounds in itertools.pairwise([*firsts, len(self.corpora)])]

    def firsts(self) -> list[int]:
        """The document number at which each corpus begins."""
        return self._firsts

    @cached_property
    def _firsts(self) -> list[int]:
        return list(itertools.accumulate((entry.count for entry in self.corpora[:-1]), initial=0))[: len(self.corpora)]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all corpora."""
        return frozenset(arrival.name for entry in self.corpora for arrival in entry.arrivals)

    def arrivals(self) -> Iterator[PlacedArrival]:
        """All documents by the corpora they arrived as, in order."""
        for entry, first in zip(self.corpora, self.firsts(), strict=True):
            start = 0
            for arrival in entry.arrivals:
                end = start + arrival.documents
                yield PlacedArrival(arrival, entry, range(start, end), range(first + start, first + end))
                start = end

    def deleted_in(self, numbers: range) -> int:
        """How many of these documents are deleted."""
        low, high = (bisect.bisect_left(self.tombstones, number) for number in (numbers.start, numbers.stop))
        return high - low

    def deleted_positions(self) -> list[list[int]]:
        """The positions of each corpus's deleted documents."""
        positions = []
        for entry, first in zip(self.corpora, self.firsts(), strict=True):
            low, high = (bisect.bisect_left(self.tombstones, document) for document in (first, first + entry.count))
            positions.append([document - first for document in self.tombstones[low:high]])
        return positions

    def document_names(self, number: int, docids: Sequence[str | None], passages: Sequence[int], shape: Sequence[int]) -> list[str]:
        """The docids of a corpus, checked against the shape of its rows. A purged document gets a name no query can ask for."""
        entry = self.corpora[number]
        if tuple(shape) != (entry.row_count, self.config["width"]) or len(docids) != entry.count or sum(passages) != entry.row_count:
            raise ValueError(f"other rows than generation {self.number} says")
        first = self.firsts()[number]
        return [docid or f"\0{first + position}" for position, docid in enumerate(docids)]

    @contextlib.contextmanager
    def as_data_error(self, folder: Path, *others: type[Exception]) -> Iterator[None]:
        """Intact files that do not fit together are damage like any other; `others` are exceptions that only they can cause here."""
        causes = (*INCONSISTENT, *others)
        try:
            yield
        except causes as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise DataError(f"generation {self.number} is inconsistent ({reason}); run `promptdsi verify`", path=folder) from error

    def renamed(self, new: dict[str, str]) -> Manifest:
        """The same generation with some blobs replaced: old name → new name."""
        corpora = []
        for entry in self.corpora:
            parts = {part: getattr(entry, part) for part in PARTS}
            renamed: dict[str, Any] = {part: new.get(name, name) for part, name in parts.items() if isinstance(name, str)}
            if isinstance(entry.documents, tuple):
                renamed["documents"] = tuple((new.get(name, name), start) for name, start in entry.documents)
            corpora.append(replace(entry, **renamed))
        statistics = new.get(self.statistics, self.statistics) if self.statistics else None
        retired = tuple(sorted({new.get(name, name) for name in self.retired}))
        return replace(self, corpora=tuple(corpora), statistics=statistics, retired=retired)

    def summary(self) -> IndexSummary:
        """What this generation contains, for people and programs."""
        corpora: list[CorpusSummary] = []
        for arrival, entry, _, numbers in self.arrivals():
            live, stored = len(numbers) - self.deleted_in(numbers), (bool(entry.probes), bool(entry.queries))
            if arrival.part:  # of the corpus before
                first = corpora.pop()
                live, stored = live + first.documents, (stored[0] or first.probes, stored[1] or first.queries)
            corpora.append(CorpusSummary(arrival.name, live, arrival.since, not entry.fast, *stored))
        return IndexSummary(
            generation=self.number,
            documents=self.documents,
            method=self.method,
            prompts=self.params.get("prompts", "none"),
            backbone=self.params.get("backbone", ""),
            width=self.config["width"],
            max_tokens=self.params["encoding"]["max_tokens"],
            store=self.store,
            format=self.format,
            params=self.params,
            corpora=corpora,
        )

    def sources(self) -> list[str]:
        """The folders that documents of this generation arrived from. What `teach` changes comes from where it came from before."""
        arrived = [placed.arrival for placed in self.arrivals() if placed.arrival.since == self.number and self.kind != "teach"]
        return list(self.event.get("folders", [arrival.source for arrival in arrived if arrival.source]))

    @staticmethod
    def folders(log: Sequence[Manifest | PrunedGeneration]) -> list[FolderSummary]:
        """The folders that documents of the newest generation came from. A sync that changed nothing made no generation."""
        newest, synced = log[-1], dict[str, Manifest | PrunedGeneration]()
        assert isinstance(newest, Manifest), "the newest generation is never pruned"
        state: Manifest | PrunedGeneration | None = newest
        while state is not None:
            for folder in state.sources():
                synced.setdefault(folder, state)
            before = state.event["to"] if state.kind == "rollback" else state.parent  # what was rolled back is undone
            state = log[before - 1] if before else None
        documents, prefixes = Counter[str](), dict[str, str]()
        for arrival, _, _, numbers in newest.arrivals():
            if arrival.source is not None and arrival.source in synced:
                documents[arrival.source] += len(numbers) - newest.deleted_in(numbers)
                prefixes[arrival.source] = arrival.prefix
        return [
            FolderSummary(folder, prefix, documents[folder], synced[folder].number, synced[folder].time)
            for folder, prefix in prefixes.items()
        ]

    def follows(self, path: Path) -> Arrival | None:
        """A corpus that came from a folder which a path lies in, equals or contains, and of which documents can be retrieved."""
        for arrival, _, _, numbers in self.arrivals():
            if arrival.source is not None and self.deleted_in(numbers) < len(numbers):
                folder = Path(arrival.source)
                if path.is_relative_to(folder) or folder.is_relative_to(path):
                    return arrival
        return None

    def next(self, kind: str, **changes: Any) -> Manifest:
        """The generation after this one, equal to it apart from `changes`."""
        fresh: dict[str, Any] = {"event": {}, "erase": {}, "pruned": ()}
        return replace(self, number=self.number + 1, parent=self.number, kind=kind, time=now(), **(fresh | changes))


class PrunedGeneration(NamedTuple):
    """What is left of a generation that was pruned: when and how it was made, and how many documents could be retrieved."""

    number: int
    parent: int | None
    kind: str
    time: str
    event: dict[str, Any]
    documents: int

    def sources(self) -> list[str]:
        """The folders that documents of this generation arrived from."""
        return list(self.event.get("folders", ()))


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
