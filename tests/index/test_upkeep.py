"""Growth: tags, pruning, merged corpora, backups; killed at any step, under load, and with files somebody else wrote."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import forged
import pytest
import small
from faults import Died, Faults, PowerLoss

from promptdsi import Corpus, DataError, Document, Index, PromptDSIError, UsageError
from promptdsi.engine.postings import SMALL_POSTINGS
from promptdsi.engine.quantized import SMALL_BLOCK
from promptdsi.index import merge_corpora
from promptdsi.index.blobs import Blobs
from promptdsi.index.documents import Documents
from promptdsi.index.entry import SMALL, Arrival
from promptdsi.index.manifest import Manifest, PrunedGeneration
from promptdsi.index.merge_corpora import mergeable
from promptdsi.index.results import Report
from promptdsi.index.store import Store

GENERATIONS = 9
QUERIES = [*small.QUERIES, "which note is about tea"]


@pytest.fixture(scope="module")
def many(original: Path, corpora: list[Corpus], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine generations: D0, D1, three documents one by one, one replaced, one deleted, one taught, and that taken back."""
    place = small.copied(original, tmp_path_factory.mktemp("many") / "index")
    index = Index.open(place, device="cpu")
    for number, document in enumerate(corpora[2].documents):  # 3, 4, 5
        index.add(Corpus([document], name=f"note {number}"), fast=False)
    index.add(Corpus([corpora[2].documents[0]._replace(text="Replaced by other words.")], name="changed"), update=True)  # 6
    index.delete(corpora[0].documents[0].docid)  # 7
    index.teach([("which note was taught", corpora[2].documents[1].docid)])  # 8
    index.rollback(7)  # 9
    return place


@pytest.fixture
def place(many: Path, tmp_path: Path) -> Path:
    return small.copied(many, tmp_path / "index")


def signatures(place: Path) -> dict[int, Any]:
    """What a reader sees in every generation that is not pruned."""
    numbers = [state.number for state in Store(place).log() if isinstance(state, Manifest)]
    return {number: small.signature(Index.open(place, at=number, device="cpu")) for number in numbers}


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_old_generations_are_dropped_and_the_log_still_shows_them(place: Path, run: Any) -> None:
    index, before = Index.open(place, device="cpu"), signatures(place)
    index.tag("release", 3)
    size = sum(path.stat().st_size for path in (place / "blobs").iterdir())
    planned = index.prune(keep=2, dry_run=True)
    report = index.prune(keep=2)
    # 8 and 9 are the newest; 9 went back to 7, so a rollback leads to 6; 3 has a tag.
    assert report.left == [3, 6, 8, 9, 10] and report.pruned == [1, 2, 4, 5, 7] == planned.pruned and report.bytes == planned.bytes
    assert sum(path.stat().st_size for path in (place / "blobs").iterdir()) == size - report.bytes
    assert signatures(place) == {number: before.get(number, before[9]) for number in report.left}
    log = index.log()
    kinds = ["create", "add", "add", "add", "add", "add", "delete", "teach", "rollback", "prune"]
    assert [state.kind for state in log] == kinds and all(state.time and state.documents for state in log)
    assert [state.number for state in log if isinstance(state, PrunedGeneration)] == report.pruned
    assert index.verify().problems == [] and index.rollback().event == {"to": 6}
    with pytest.raises(UsageError, match=r"generation 5 \(made by `add` on 20.*\) was pruned; `promptdsi log` lists those that are left"):
        Index.open(place, at=5, device="cpu")
    with pytest.raises(UsageError, match=r"generation 7 .* was pruned"):
        index.rollback(7)
    outcome = run("search", place, "water", "--at", "5")
    assert outcome.returncode == 2 and "was pruned" in outcome.stderr and len(outcome.stderr.splitlines()) == 1
    assert run("search", place, "water", "--at", "release", "--json").stdout == run("search", place, "water", "--at", "3", "--json").stdout
    rows = [json.loads(line) for line in run("log", place, "--json").stdout.splitlines()]
    assert [row["generation"] for row in rows if row["pruned"]] == report.pruned and rows[2]["tags"] == ["release"]
    assert rows[9]["what"] == "5 generations dropped" and "release" in run("log", place).stdout


def test_age_and_number_together_keep_what_either_keeps(place: Path) -> None:
    index = Index.open(place, device="cpu")
    assert index.prune(older_than=1, dry_run=True).pruned == []
    assert index.prune(older_than=0, dry_run=True).pruned == [1, 2, 3, 4, 5, 7, 8]
    assert index.prune(keep=4, older_than=0, dry_run=True).pruned == [1, 2, 3, 4, 5]
    assert index.prune(keep=100).generation == GENERATIONS  # nothing to do makes no generation
    for options, says in (({}, "say what to prune"), ({"keep": 0}, "at least 1"), ({"older_than": -1.0}, "number of days")):
        with pytest.raises(UsageError, match=says):
            index.prune(**options)  # type: ignore[arg-type]


def test_tags(place: Path, run: Any, corpora: list[Corpus]) -> None:
    assert json.loads(run("tag", place, "start", "1", "--json").stdout) == {"tag": "start", "generation": 1, "deleted": False}
    index = Index.open(place, device="cpu")
    assert index.tag("now") == GENERATIONS and index.tags() == {"start": 1, "now": GENERATIONS}
    assert Index.open(place, at="start", device="cpu").generation == 1
    for name in ("", "3", "a b", "-x", "x" * 101, "a/b"):
        with pytest.raises(UsageError, match="a tag is a letter"):
            index.tag(name)
    with pytest.raises(UsageError, match="the tag 'start' names generation 1; remove it first"):
        index.tag("start", 2)
    with pytest.raises(UsageError, match="has no generation or tag 'strat'; did you mean 'start'"):
        Index.open(place, at="strat")
    assert run("tag", place, "nothing", "--delete").returncode == 2 and run("tag", place, "now", "99").returncode == 2
    index.purge(corpora[0].documents[1].docid)  # a tag still names the generation, without what was erased
    assert corpora[0].documents[1].docid not in str(small.signature(Index.open(place, at="start", device="cpu")))
    assert index.rollback("start").event == {"to": 1}
    assert run("tag", place, "start", "--delete").returncode == 0 and index.tags() == {"now": GENERATIONS}
    assert index.verify().problems == []
    forged.replace(place / "tags.json", (place / "tags.json").read_bytes().replace(b'"now"', b'"new"'))
    with pytest.raises(DataError, match=r"tags.json: is damaged"):
        index.tags()
    forged.replace(place / "tags.json", forged.seal(b'{"format":4,"written_by":"","tags":{"later":99}}'))
    assert [problem for problem in index.verify().problems if "the tag later names generation 99, which is not there" in problem]
    forged.replace(place / "tags.json", forged.seal(b'{"format":4,"written_by":"","tags":{"../x":1}}'))
    with pytest.raises(DataError, match="is no list of tags: tags"):
        index.tags()


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
    assert victim.text.encode()[:60] not in everything(place) and index.verify().problems == []
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
    assert b"Note number 4 is" not in everything(index.path) and b"Note number 5 is" in everything(index.path)
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
    assert replaced.text.encode()[:60] in everything(place)
    assert index.purge().event == {"documents": 1, "replaced": 1}
    for text in (replaced.text, deleted.text):
        assert text.encode()[:60] not in everything(place)
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


CHANGES: dict[str, Callable[[Index, Path], object]] = {
    "prune": lambda index, folder: index.prune(keep=1),
    "merge": lambda index, folder: index.prune(keep=2, merge=True),
    "tag": lambda index, folder: index.tag("named", 2),
    "backup": lambda index, folder: index.backup(folder / "backup"),
}


def change(what: str, place: Path) -> None:
    CHANGES[what](Index.open(place, check=False, device="cpu"), place.parent)


@pytest.mark.parametrize("what", ["prune", "merge", "tag"])
def test_killed_at_any_step_every_generation_reads_as_before(
    what: str, many: Path, tmp_path: Path, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, before = small.copied(many, tmp_path / "index"), signatures(many)
    with monkeypatch.context() as patch:
        counted = Faults().install(patch)
        change(what, place)
    assert counted.count >= 4
    for step in range(1, counted.count + 1):
        small.copied(many, place)
        with monkeypatch.context() as patch:
            Faults(at=step).install(patch)
            with pytest.raises(Died):
                change(what, place)
        seen = signatures(place) if step % 6 == 0 else {}
        assert all(before.get(number, before[GENERATIONS]) == signature for number, signature in seen.items()), counted.log[step - 1]
        change(what, place)  # the same command again finishes
        index = Index.open(place, check=False, device="cpu")
        index.delete(corpora[0].documents[1].docid)  # and the next write takes leftovers away
        assert index.verify().problems == [], counted.log[step - 1]


def test_a_backup_killed_at_any_step_leaves_the_last_finished_one(
    place: Path, tmp_path: Path, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        first = Faults().install(patch)
        change("backup", place)
    Index.open(place, check=False, device="cpu").purge(corpora[1].documents[0].docid)
    finished = small.copied(tmp_path / "backup", tmp_path / "finished")
    with monkeypatch.context() as patch:
        second = Faults().install(patch)
        change("backup", place)
    generations = set()
    for step in range(1, second.count + 1):
        small.copied(finished, tmp_path / "backup")
        with monkeypatch.context() as patch:
            Faults(at=step).install(patch)
            with pytest.raises(Died):
                change("backup", place)
        if step % 5 == 0 or step > second.count - 8:
            shutil.rmtree(tmp_path / "restored", ignore_errors=True)
            generations.add(Index.restore(tmp_path / "backup", tmp_path / "restored"))
        change("backup", place)  # the same command again finishes
        assert {path.name for path in (tmp_path / "backup").iterdir()} == {"BACKUP", "blobs", "lock"}
    assert generations == {GENERATIONS, GENERATIONS + 1}
    for step in range(1, first.count + 1, 9):  # nothing was finished before
        shutil.rmtree(tmp_path / "backup")
        with monkeypatch.context() as patch:
            Faults(at=step).install(patch)
            with pytest.raises(Died):
                change("backup", place)
        if step < first.count - 12:  # beyond, it may be finished
            with pytest.raises(PromptDSIError, match=r"is no backup: it has no file BACKUP|holds no finished backup"):
                Index.restore(tmp_path / "backup", tmp_path / "none")
        change("backup", place)
    shutil.rmtree(tmp_path / "restored")
    assert Index.restore(tmp_path / "backup", tmp_path / "restored") == GENERATIONS + 1
    assert signatures(tmp_path / "restored") == signatures(place)


def test_power_loss_after_a_prune_or_a_backup(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = small.copied(many, tmp_path / "index")
    for what, root in (("prune", place), ("merge", place), ("backup", tmp_path / "backup")):
        with monkeypatch.context() as patch:
            power = PowerLoss(root)
            power.install(patch)
            change(what, place)
        seen = signatures(place)
        power.lose()
        assert signatures(place) == seen and Index.open(place, device="cpu").verify().problems == []
    assert Index.restore(tmp_path / "backup", tmp_path / "restored") and signatures(tmp_path / "restored") == signatures(place)


def test_a_backup_is_incremental_and_restores_every_generation(place: Path, tmp_path: Path, run: Any, corpora: list[Corpus]) -> None:
    index, folder = Index.open(place, device="cpu"), tmp_path / "backup"
    index.tag("release", 3)
    index.evaluate(corpora[1], record=True)
    first = json.loads(run("backup", place, folder, "--json").stdout)
    assert first["generation"] == GENERATIONS and first["copied"] == first["blobs"] + GENERATIONS + 2
    assert index.backup(folder).copied == 0
    index.add(Corpus([Document("late", "late words")], name="late"))
    assert index.backup(folder).copied == 5  # rows, ids, words and documents, and a manifest
    damaged = max((folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert index.backup(folder).copied == 1  # right size, wrong checksum
    outcome = run("restore", folder, tmp_path / "restored", "--json")
    assert json.loads(outcome.stdout) == {"generation": GENERATIONS + 1}
    restored = Index.open(tmp_path / "restored", device="cpu")
    assert signatures(tmp_path / "restored") == signatures(place) and restored.tags() == {"release": 3}
    assert restored.verify().problems == [] and restored.eval_records() == index.eval_records()
    assert not (tmp_path / "restored" / ".creating").exists()
    assert run("restore", folder, tmp_path / "restored").returncode == 1  # never over an index
    restored.backup(folder)  # the same history goes on in the copy …
    restored.delete("late")
    restored.backup(folder)
    index.undelete(corpora[0].documents[0].docid)
    with pytest.raises(DataError, match="is a backup of another index, or of a copy that changed otherwise"):
        index.backup(folder)  # … and the other one is another index now


def test_what_is_no_backup_of_this_index_is_refused(place: Path, tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    index = Index.open(place, device="cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("x")
    with pytest.raises(DataError, match="exists and is no backup"):
        index.backup(tmp_path / "mine")
    with pytest.raises(UsageError, match="lies inside the index"):
        index.backup(place / "copy")
    with pytest.raises(DataError, match="is no backup: it has no file BACKUP"):
        Index.restore(tmp_path / "mine", tmp_path / "other")
    other = small.create(tmp_path / "another", corpora[1], backbone)
    other.backup(tmp_path / "backup")
    with pytest.raises(DataError, match="is a backup of another index"):
        index.backup(tmp_path / "backup")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["notes.txt"]


def test_a_backup_from_a_stranger_leads_nowhere(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    Index.open(place, device="cpu").backup(folder)
    content = forged.content(folder / "BACKUP")
    digest = next(iter(content["files"].values()))
    for changes, says in (
        ({"files": {"../../escaped.json": digest}}, "is no list of a backup: files"),
        ({"files": {"CURRENT": digest}}, "is no list of a backup: files"),
        ({"blobs": {"../x.json": 1}}, "is no list of a backup: blobs"),
        ({"current": "1"}, "current is no generation"),
        ({"current": f"000004 {'0' * 64}\n"}, "names generation 000004, which it does not hold"),
        ({"files": {"generations/000001.json": "0" * 64}}, "No such file|missing"),
        ({"history": 3}, "is no list of a backup: history"),
    ):
        forged.replace(folder / "BACKUP", forged.seal(json.dumps(content | changes).encode()))
        with pytest.raises((PromptDSIError, FileNotFoundError), match=says):
            Index.restore(folder, tmp_path / "restored")
        assert not (tmp_path / "restored/CURRENT").exists() and not (tmp_path / "escaped.json").exists()
    forged.replace(folder / "BACKUP", forged.seal(json.dumps(content).encode()))
    name = next(iter(content["blobs"]))
    (folder / "blobs" / name).rename(tmp_path / name)
    (folder / "blobs" / name).symlink_to(tmp_path / name)
    with pytest.raises(DataError, match="is a link"):
        Index.restore(folder, tmp_path / "restored")


def test_after_a_purge_the_next_backup_holds_nothing_of_it(place: Path, tmp_path: Path, corpora: list[Corpus]) -> None:
    index, folder, victim = Index.open(place, device="cpu"), tmp_path / "backup", corpora[0].documents[2]
    index.backup(folder)
    assert victim.text.encode()[:60] in everything(folder)
    index.purge(victim.docid)
    index.backup(folder)
    for content in (victim.text.encode()[:60], json.dumps(victim.docid).encode()):
        assert content not in everything(folder)
    Index.restore(folder, tmp_path / "restored")
    assert signatures(tmp_path / "restored") == signatures(place)


def test_a_backup_of_an_index_in_use(place: Path, tmp_path: Path, corpora: list[Corpus]) -> None:
    """A writer commits, purges and prunes and a reader searches all the time: every backup restores to a generation there was."""
    seen: dict[int, Any] = {}
    stop, failures = threading.Event(), list[BaseException]()
    seen[GENERATIONS] = small.signature(place)

    def write() -> None:
        try:
            index, number = Index.open(place, device="cpu"), 0
            while not stop.is_set():
                number += 1
                docid = corpora[0].documents[3 + number % 5].docid
                change = index.undelete if index.locate(docid) and index.locate(docid).deleted else index.delete  # type: ignore[union-attr]
                change(docid)
                seen[index.generation] = small.signature(index)
                if number % 4 == 0:
                    index.prune(keep=3)
                    seen[index.generation] = small.signature(index)
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        try:
            while not stop.is_set():
                small.signature(place)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    try:
        generations = []
        for number in range(4):
            generations.append(Index.open(place, check=False).backup(tmp_path / "backup").generation)
            Index.restore(tmp_path / "backup", tmp_path / f"restored {number}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == [] and len(set(generations)) > 1
    for number, generation in enumerate(generations):
        restored = Index.open(tmp_path / f"restored {number}", device="cpu")
        assert restored.generation == generation and small.signature(restored) == seen[generation]
