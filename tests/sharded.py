"""For the tests: an index with ties, long, deleted and replaced documents, and its shards in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small

from promptdsi import Corpus, Document, Index
from promptdsi.engine.passage_store import MergedPassageStore
from promptdsi.index.filters import unknown_field
from promptdsi.index.generation import Opening
from promptdsi.index.manifest import Manifest
from promptdsi.index.shards import ShardedGeneration, ShardOpener

QUERIES = [*small.QUERIES, "green tea leaves", "boats in a canal lock", "nothing of the kind"]
FILTERS = [(), ("color=green",), ("number>=5", "corpus=later"), ("docid=tie-*",), ("color!=green",)]
TIED = "Green tea leaves are rolled by hand."
LONG = "A lock lifts boats from one level of a canal to the next. " * 12


def build(folder: Path, corpora: list[Corpus], backbone: str, **options: Any) -> Path:
    """Five generations: D0, two corpora with ties and long documents, an update, a delete."""
    index = small.create(folder, corpora[0], backbone, **{"encoding.passage_tokens": 24}, **options)
    texts = [TIED, LONG, "Owls hunt at night.", TIED, f"{LONG} Boats wait."]
    tied = [
        Document(f"tie-{9 - number}", texts[number % 5], "", {"color": "green" if number % 2 else "red", "number": number})
        for number in range(10)
    ]
    index.add(Corpus(tied, name="ties"), fast=True)
    later = [Document(f"later-{number}", texts[number % 5], "Later", {"number": number}) for number in range(7)]
    index.add(Corpus(later, name="later"), fast=True)
    index.add(Corpus([Document("tie-3", "Green boats.", "", {"color": "green"})], name="news"), fast=True, update=True)
    index.delete(["tie-9", "later-2", corpora[0].documents[0].docid])
    return folder


class InProcessShards(MergedPassageStore):
    """The shards of a generation, all in this process."""

    def __init__(self, path: Path, opening: Opening, manifest: Manifest, count: int) -> None:
        super().__init__(unknown_field)
        opener = ShardOpener(path, opening._replace(on=None))
        self.shards = [opener(manifest, number, count) for number in range(count)]

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(shard, method)(*arguments) for shard in self.shards]


def in_process(index: Index, count: int) -> InProcessShards:
    return InProcessShards(index.path, index.opening, index.manifest, count)


@contextlib.contextmanager
def without_ray(count: int) -> Iterator[None]:
    """Within it `Index.open(…, on=…)` has this many shards, all in this process."""

    def open_passages(generation: ShardedGeneration) -> None:
        generation.processes = "this one"
        generation._passages = InProcessShards(generation.store.folder, generation.opening, generation.manifest, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardedGeneration, "_open_passages", open_passages)
        yield


@contextlib.contextmanager
def parts_of(passages: int) -> Iterator[None]:
    """Within it a corpus is written in parts of at most this many passages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("promptdsi.corpus.passages.PIECE", passages)
        yield
