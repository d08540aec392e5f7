"""Documents of a generation by docid, for writers: read off its files, or asked of the shards that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from promptdsi.engine.passage_store import LiveDocument, PassageStore
from promptdsi.index.manifest import Manifest
from promptdsi.index.store import Store
from promptdsi.wording import suggest

if TYPE_CHECKING:
    from promptdsi.index.shards import Cluster

DOCIDS_AT_ONCE = 100_000  # that shards are asked for in a message


class Lookup(Protocol):
    """Where the documents of a generation are, by docid. Nothing is held of documents that are not asked for."""

    def live(self, docids: Sequence[str]) -> dict[str, LiveDocument]:
        """Number and content hash of those of the documents that can be retrieved."""
        ...

    def versions(self, docids: Sequence[str]) -> dict[str, list[int]]:
        """The numbers of all documents with each docid, deleted or not, oldest first: one that was replaced has several."""
        ...

    def has_folder(self, name: str) -> bool:
        """Whether the first part of the path that some live docid is has this name."""
        ...

    def similar_docid(self, docid: str) -> str:
        """The end of an error message that names the most similar docid, or nothing."""
        ...


def lookup_of(store: Store, manifest: Manifest, cluster: Cluster | None) -> Lookup:
    return FileLookup(store, manifest) if cluster is None else ShardLookup(cluster.generation(manifest).passages)


class FileLookup:
    """Reads the ids of a generation, corpus by corpus."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest

    def live(self, docids: Sequence[str]) -> dict[str, LiveDocument]:
        named, live, deleted = set(docids), dict[str, LiveDocument](), set(self.manifest.tombstones)
        for first, entry in zip(self.manifest.firsts(), self.manifest.corpora, strict=True):
            for number, (docid, content) in enumerate(self.store.hashed_docids(entry), first):
                if docid in named and docid is not None and number not in deleted:
                    live[docid] = (number, content)
        return live

    def versions(self, docids: Sequence[str]) -> dict[str, list[int]]:
        versions: dict[str, list[int]] = {docid: [] for docid in docids}
        for number, docid in self._numbered():
            if docid in versions:
                versions[docid].append(number)
        return versions

    def has_folder(self, name: str) -> bool:
        deleted = set(self.manifest.tombstones)
        return any(docid.partition("/")[0] == name for number, docid in self._numbered() if number not in deleted)

    def similar_docid(self, docid: str) -> str:
        return suggest(docid, dict.fromkeys(name for _, name in self._numbered()))

    def _numbered(self) -> Iterator[tuple[int, str]]:
        """Number and docid of every document that was not purged."""
        for first, entry in zip(self.manifest.firsts(), self.manifest.corpora, strict=True):
            for position, docid in enumerate(self.store.docids(entry)):
                if docid is not None:
                    yield first + position, docid


class ShardLookup:
    """Asks the shards of a generation."""

    def __init__(self, passages: PassageStore) -> None:
        self.passages = passages

    def live(self, docids: Sequence[str]) -> dict[str, LiveDocument]:
        return {docid: place for some in _slices(docids) for docid, place in zip(some, self.passages.live(some), strict=True) if place}

    def versions(self, docids: Sequence[str]) -> dict[str, list[int]]:
        return {docid: numbers for some in _slices(docids) for docid, numbers in zip(some, self.passages.versions(some), strict=True)}

    def has_folder(self, name: str) -> bool:
        return self.passages.has_folder(name)

    def similar_docid(self, docid: str) -> str:
        return self.passages.similar_docid(docid)


def _slices(docids: Sequence[str]) -> list[Sequence[str]]:
    return [docids[first : first + DOCIDS_AT_ONCE] for first in range(0, len(docids), DOCIDS_AT_ONCE)]
