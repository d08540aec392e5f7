"""Small corpora are merged: by hand, and after what sync, add and teach add."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small

from promptdsi import Corpus, Document, Index, UsageError
from promptdsi.engine.postings import SMALL_POSTINGS
from promptdsi.engine.quantized import SMALL_BLOCK
from promptdsi.index import merge_corpora
from promptdsi.index.blobs import Blobs
from promptdsi.index.documents import Documents
from promptdsi.index.entry import SMALL, Arrival
from promptdsi.index.manifest import Manifest
from promptdsi.index.merge_corpora import mergeable
from promptdsi.index.results import Report
from promptdsi.index.store import Store

QUERIES = [*small.QUERIES, "which note is about tea"]


def test_small_corpora_are_merged_bit_for_bit(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    queries = [*small.QUERIES, "which note was taught"]
    before, files = index.search(queries, k=100), {path.name for path in (place / "blobs").iterdir()}
    names = [corpus.corpus for corpus in index.info().corpora]
    report = index.prune(merge=True)
    assert report.merged == len(names) - 1 == 5 and report.pruned == [] and len(index.manifest.corpora) == 2
    assert index.search(queries, k=100) == before  # scores to the last bit, corpus and generation of each document
    assert [corpus.corpus for corpus in index.info().corpora] == names
    assert {path.name for path in (place / "blobs").iterdir()} > files and index.verify().problems == []
    for name in names:
        with pytest.raises(UsageError, match="has a corpus named"):
            index.add(Corpus([Document("new", "new words")], name=name))
    assert {hit.corpus for hit in index.search("water", k=100, where="corpus=note 1")} == {"note 1"}
    victim = corpora[2].documents[1]
    assert index.locate(victim.docid) == (*(("note 1", 4)), False)
    index.add(Corpus([Document("late", "late words")], name="late"))
    index.teach([("which note was taught", victim.docid)])
    assert index.manifest.corpora[-1].name == "note 1 2"
    assert index.prune(merge=True).merged == 3 and index.search(queries, k=100) and index.verify().problems == []
    index.purge(victim.docid)
    assert victim.text.encode()[:60] not in small.contents(place) and index.verify().problems == []
    index.prune(keep=1)
    assert index.verify().problems == [] and len(index) == len(before[0]) + 1 - 1


def synced(place: Path, notes: Path, count: int) -> list[Any]:
    """An index brought in step with a folder that grows by a note at a time: the reports."""
    notes.mkdir(parents=True)
    reports = []
    for number in range(count):
        (notes / f"{number}.txt").write_text(f"Note number {number} is about water and boats.")
        files, index = {path.name for path in (place / "blobs").iterdir()}, Index.open(place, device="cpu")
        reports.append(index.sync(notes))
        log = Store(place).log()
        steps = log[reports[-1].generation - 1 :]
        assert [step.kind for step in steps] in (["sync"], ["sync", "prune"]) and {
            path.name for path in (place / "blobs").iterdir()
        } > files
        assert steps[0].corpora[:-1] == log[reports[-1].generation - 2].corpora  # the sync itself changed no file
    return reports


def test_what_sync_adds_is_merged_in_generations_of_their_own(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_corpora, "FAN", 3)
    merged = small.copied(original, tmp_path / "merged")
    synced(merged, tmp_path / "a" / "notes", 10)
    monkeypatch.setattr(merge_corpora, "FAN", 100)
    apart = small.copied(original, tmp_path / "apart")
    synced(apart, tmp_path / "b" / "notes", 10)
    indexes = [Index.open(place, device="cpu") for place in (merged, apart)]
    # Three times three notes are merged; when the tenth comes, so are the three of three. D1 has queries stored, and stays.
    assert [len(index.manifest.corpora) for index in indexes] == [4, 12] and indexes[0].manifest.corpora[-2].count == 9
    results = [[[(hit.docid, hit.score, hit.corpus) for hit in hits] for hits in index.search(small.QUERIES, k=100)] for index in indexes]
    assert results[0] == results[1] and indexes[0].verify().problems == []
    indexes[0].rollback()  # the last sync, not the merge
    assert indexes[0].locate("notes/9.txt") is None and indexes[0].locate("notes/8.txt")


def test_what_add_adds_is_merged_and_no_document_of_the_past_is_opened(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_corpora, "FAN", 3)
    merged, apart = (Index.open(small.copied(original, tmp_path / name), device="cpu") for name in ("merged", "apart"))
    read: list[str] = []
    connect, check = Documents._connect, Blobs.check
    monkeypatch.setattr(Documents, "_connect", lambda self: [read.append(self.path.name), connect(self)][1])
    monkeypatch.setattr(Blobs, "check", lambda self, name, size: [read.append(name), check(self, name, size)][1])
    merges, files = [], [name for entry in merged.manifest.corpora for name in entry.files("documents")]
    for number in range(10):
        read.clear()
        merges.append(added_alone(merged, 1, first=number)[0].merged)
        assert not read or set(files).isdisjoint(read)
        files += set(merged.manifest.corpora[-1].files("documents")).difference(files)
    assert merges == [0, 0, 3, 0, 0, 3, 0, 0, 3, 3]
    entry = merged.manifest.corpora[-2]
    assert entry.files("documents") == files[2:-1] and [len(covered) for _, covered in entry.document_files] == [1] * 9
    monkeypatch.setattr(merge_corpora, "FAN", 100)
    added_alone(apart, 10)
    index = Index.open(merged.path, device="cpu")
    for hits, expected in zip(index.search(QUERIES, k=100), apart.search(QUERIES, k=100), strict=True):
        assert [(*hit[:4], hit.snippet) for hit in hits] == [(*hit[:4], hit.snippet) for hit in expected]
    assert {hit.docid for hit in index.search("water", k=100, where="title=")} >= {"note-4"}
    assert index.get("note-4").text == apart.get("note-4").text and index.verify().problems == []
    index.teach([("a query of somebody", "note-5")])
    assert index.rollback().kind == "rollback"
    index.purge("note-4")
    assert b"Note number 4 is" not in small.contents(index.path) and b"Note number 5 is" in small.contents(index.path)
    assert index.get("note-5").text == apart.get("note-5").text and index.verify().problems == []
    assert Index.open(index.path, at=10, device="cpu").locate("note-5") and len(index.manifest.corpora[-2].document_files) == 9
    assert index.prune(merge=True).merged == 3 and len(index.manifest.corpora[-1].document_files) == 1
    assert index.prune(merge=True).merged == 0
    assert index.get("note-5").text == apart.get("note-5").text and index.verify().problems == []


def test_a_sync_stands_where_merging_fails(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_corpora, "FAN", 3)
    monkeypatch.setattr(merge_corpora, "_merged", full_disk)
    place = small.copied(original, tmp_path / "index")
    last = synced(place, tmp_path / "notes", 4)[-1]
    index = Index.open(place, device="cpu")
    assert "No space left" in last.not_merged and last.merged == 0
    assert index.generation == last.generation and index.locate("notes/3.txt") and index.verify().problems == []
    monkeypatch.undo()
    monkeypatch.setattr(merge_corpora, "FAN", 3)
    (tmp_path / "notes" / "4.txt").write_text("More words about boats.")
    assert index.sync(tmp_path / "notes").generation == last.generation + 1 == index.generation - 1 and index.verify().problems == []


def test_what_changes_nothing_merges_nothing(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, notes = small.copied(original, tmp_path / "index"), tmp_path / "notes"
    index = Index.open(place, device="cpu")
    added_alone(index, 3)
    notes.mkdir()
    (notes / "0.txt").write_text("Words about boats.")
    monkeypatch.setattr(merge_corpora, "FAN", 3)
    before = index.generation
    assert index.sync(notes, dry_run=True).added == ["notes/0.txt"] and index.generation == before
    report = index.sync(notes)
    assert (report.generation, report.merged, index.generation) == (before + 1, 4, before + 2)
    added_alone(index, 2, first=3)
    assert index.sync(notes).unchanged == 1 and index.generation == before + 4


def test_small_corpora_are_merged_on_both_sides_of_those_that_cannot_be(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(small.copied(original, tmp_path / "index"), device="cpu")
    added_alone(index, 2)
    index.add(Corpus([Document("raw", "This one is not trained yet.")], name="raw"), fast=True)
    added_alone(index, 1, first=2)
    monkeypatch.setattr(merge_corpora, "FAN", 4)
    docid = next(document.docid for document in small.stream()[0].documents)
    report = index.teach([("a query of somebody", docid)])
    assert report.merged == 4 and index.generation == report.generation + 1
    assert [entry.count for entry in index.manifest.corpora[-3:]] == [2, 1, 2] and index.verify().problems == []


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ([{}, {}, {"fast": True}, {}, {"probes": "x"}, {}, {}], [range(1, 3), range(6, 8)]),
        ([{}, {"documents": None}, {"documents": None}, {}, {}], [range(2, 4), range(4, 6)]),
        ([{}, {"count": SMALL}, {}, {}], [range(3, 5)]),
        ([{"count": 2 * SMALL, "documents": (("x", 0), ("y", 9))}, {}, {"documents": (("z", 0),)}], [range(1, 2), range(2, 4)]),
        ([{"count": SMALL - 1}] * 246, [range(1, 245), range(245, 247)]),  # rows
        ([{"count": 1_000, "merged": (Arrival("a", 2, 1),) * 1_000}] * 42, [range(1, 21), range(21, 41), range(41, 43)]),
    ],
)
def test_which_corpora_are_merged(changes: list[dict[str, Any]], runs: list[range], original: Path) -> None:
    manifest = Store(original).manifest()
    entry = replace(manifest.corpora[0], name="small", count=1, passages=0, since=2, probes=None, queries=None, fast=False)
    entries = (replace(entry, name=f"small {number}", **fields) for number, fields in enumerate(changes))
    assert mergeable(replace(manifest, corpora=(manifest.corpora[0], *entries))) == runs


def test_interrupted_while_merging_the_change_stands(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_corpora, "FAN", 2)
    monkeypatch.setattr(merge_corpora, "_merged", interrupted)
    index = Index.open(small.copied(original, tmp_path / "index"), device="cpu")
    added_alone(index, 1)
    with pytest.raises(KeyboardInterrupt, match="generation 4 was committed; only merging small corpora was stopped"):
        added_alone(index, 1, first=1)
    assert index.report and index.report.added == 1 and index.report.generation == 4
    assert index.generation == index.store.current() and index.get("note-1").text.startswith("Note number 1")


def test_what_is_small_is_what_opening_copies() -> None:
    assert SMALL == SMALL_BLOCK == SMALL_POSTINGS


def added_alone(index: Index, count: int, first: int = 0) -> list[Report]:
    notes = [Document(f"note-{number}", f"Note number {number} is about tea and kilns.") for number in range(first, first + count)]
    return [index.add(Corpus([note], name=note.docid)) for note in notes]


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_purge_reaches_what_was_replaced_before_and_after_corpora_were_merged(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    index.prune(merge=True)
    replaced, deleted = corpora[2].documents[0], corpora[0].documents[0]
    assert replaced.text.encode()[:60] in small.contents(place)
    assert index.purge().event == {"documents": 1, "replaced": 1}
    for text in (replaced.text, deleted.text):
        assert text.encode()[:60] not in small.contents(place)
    assert index.verify().problems == [] and index.get(replaced.docid).text == "Replaced by other words."


def test_merged_documents_stay_those_of_their_folder(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    index = small.create(tmp_path / "index", corpora[0], backbone)
    for number in range(3):
        (notes / f"{number}.txt").write_text(f"Note number {number} about water.")
        index.sync(notes)
    index.add(Corpus([Document("by hand", "added by hand")], name="hand"))
    folders = Manifest.folders(index.log())
    assert index.prune(keep=1, merge=True).merged == 4 and Manifest.folders(index.log()) == folders
    (notes / "1.txt").unlink()
    (notes / "2.txt").write_text("Other words.")
    report = index.sync(notes)
    assert (report.added, report.updated, report.deleted) == ([], ["notes/2.txt"], ["notes/1.txt"])
    assert index.sync(notes).generation == report.generation and index.verify().problems == []
