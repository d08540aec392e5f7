"""A corpus of many passages is stored in parts: the same index for whoever searches, lists, tunes or purges it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sharded
import small

from promptdsi import Corpus, DataError, Index
from promptdsi.corpus.passages import Passage, Passages
from promptdsi.index.file_checks import check_state
from promptdsi.index.shards import ShardGeneration

LIMIT = 8


@pytest.fixture(scope="module")
def pair(corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same index in one part for each corpus, and in several."""
    folder = tmp_path_factory.mktemp("parts")
    single = sharded.build(folder / "whole", corpora, backbone, keep_queries=True, keep_probes=5)
    with sharded.parts_of(LIMIT):
        return single, sharded.build(folder / "parts", corpora, backbone, keep_queries=True, keep_probes=5)


@pytest.fixture
def parted(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    return small.copied(pair[1], tmp_path / "index")


def test_pieces_hold_whole_documents_and_at_most_the_limit(corpora: list[Corpus]) -> None:
    passages = Passages(corpora[1], [[Passage(0, 1)] * count for count in (5, 4, 9)])
    with sharded.parts_of(9):
        assert passages.pieces() == [range(0, 2), range(2, 3)]
    with sharded.parts_of(4):
        assert passages.pieces() == [range(0, 1), range(1, 2), range(2, 3)]  # a document of more is not divided
    assert passages.pieces() == [range(0, 3)]


def test_an_index_in_parts_is_the_same_index(pair: tuple[Path, Path]) -> None:
    single, parts = (Index.open(path, device="cpu") for path in pair)
    entries = parts.manifest.corpora
    assert len(entries) > len(single.manifest.corpora) == len(parts.manifest.parts())
    assert all(entry.row_count <= LIMIT or entry.count == 1 for entry in entries) and [entry.part for entry in entries[:3]] == [0, 1, 2]
    assert parts.info().corpora == single.info().corpora
    assert parts.search(sharded.QUERIES, k=40, explain=True) == single.search(sharded.QUERIES, k=40, explain=True)
    assert parts.search(sharded.QUERIES, k=40, where="number>=5") == single.search(sharded.QUERIES, k=40, where="number>=5")
    assert [len(generation.corpora) for generation in parts.log()] != [len(generation.corpora) for generation in single.log()]
    assert parts.verify().problems == []


def test_learned_over_parts_a_corpus_is_the_same(pair: tuple[Path, Path], parted: Path, corpora: list[Corpus], tmp_path: Path) -> None:
    """D0's rows in several blocks give new rows the same norms and the same softmax, up to rounding."""
    single, parts = (Index.open(path, device="cpu") for path in (small.copied(pair[0], tmp_path / "whole"), parted))
    with sharded.parts_of(LIMIT):
        reports = [index.add(corpora[1]) for index in (single, parts)]
    assert reports[0].dev_hits10 == reports[1].dev_hits10 and reports[0].drift == reports[1].drift
    for expected, hits in zip(single.search(sharded.QUERIES, k=60), parts.search(sharded.QUERIES, k=60), strict=True):
        assert {hit.docid: hit.score for hit in hits} == pytest.approx({hit.docid: hit.score for hit in expected}, rel=1e-5, abs=1e-6)


def test_a_corpus_in_parts_is_tuned_as_one(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    for fast, effort in ((False, "normal"), (True, "quick")):
        indexes = []
        for name, limit in (("whole", 1000), ("parts", 2)):
            with sharded.parts_of(limit):
                index = small.create(tmp_path / f"{name} {effort}", corpora[0], backbone, effort=effort)
                if not fast:
                    index.add(corpora[1], fast=True)
                index.tune()
                indexes.append(index)
        assert small.signature(indexes[0]) == small.signature(indexes[1])
        assert len(indexes[1].manifest.corpora) > 2 and not any(entry.fast for entry in indexes[1].manifest.corpora)
        assert indexes[1].verify().problems == []


def test_purge_erases_from_the_part_of_a_document_and_from_the_probes_of_all(parted: Path) -> None:
    index = Index.open(parted, device="cpu")
    manifest = index.manifest
    last = manifest.parts()[0][-1]
    probes = [docid for probe in index.store.blobs.list(str(manifest.corpora[0].probes), "probes") for docid in probe["docids"]]
    ends = [str(docid) for docid in index.store.docids(manifest.corpora[last])]
    victim = next((docid for docid in ends if docid in probes), ends[-1])
    index.purge(victim)
    after = index.manifest
    changed = {number for number in range(len(manifest.corpora)) if after.corpora[number].rows != manifest.corpora[number].rows}
    assert changed == {last}  # no other part is rewritten
    left = [docid for probe in index.store.blobs.list(str(after.corpora[0].probes), "probes") for docid in probe["docids"]]
    assert victim not in left and (victim not in probes or len(left) < len(probes))
    assert index.verify().problems == []
    everything = b"".join(path.read_bytes() for path in parted.rglob("*") if path.is_file())
    assert victim.encode() not in everything


def test_a_shard_verifies_and_reads_only_the_parts_that_its_documents_lie_in(parted: Path) -> None:
    index = Index.open(parted, device="cpu")
    entries = index.manifest.corpora
    first = ShardGeneration(index.store, index.manifest, index.opening, 0, len(entries))
    names = {name for entry in entries if not first.needed_blobs().isdisjoint({entry.rows}) for name in (entry.rows, entry.ids)}
    assert 2 <= len(names) <= 4 and names < first.needed_blobs()
    rows = parted / "blobs" / entries[-1].rows
    rows.write_bytes(rows.read_bytes()[:-1] + b"\0\0")  # another part is damaged: this shard does not mind
    assert len(ShardGeneration(index.store, index.manifest, index.opening, 0, len(entries)).table) == len(first.table)
    with pytest.raises(DataError, match="is damaged"):
        ShardGeneration(index.store, index.manifest, index.opening, len(entries) - 1, len(entries))


def test_parts_that_do_not_follow_each_other_are_refused(parted: Path) -> None:
    from dataclasses import replace

    manifest = Index.open(parted, device="cpu").manifest
    for corpora in (manifest.corpora[1:], (manifest.corpora[0], *manifest.corpora[2:])):
        with pytest.raises(ValueError, match="parts of a corpus do not follow each other"):
            check_state(replace(manifest, corpora=corpora, tombstones=()))
