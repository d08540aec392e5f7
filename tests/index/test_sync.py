"""`sync`: after it the index holds what the folders hold, whatever happened to them before, and nothing when nothing did."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import small
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from promptdsi import Corpus, DataError, Document, Index
from promptdsi.corpus.corpus import ReadNotes
from promptdsi.errors import UsageError
from promptdsi.index.store import Store

NAMES = ["a.txt", "b.md", "inner/a.txt", "inner/deep/c.txt"]
TEXTS = [f"The {subject} stands near the harbour and the mill." for subject in ("kettle", "glacier", "violin", "lantern", "orchard")]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def contents(index: Index) -> dict[str, str]:
    """The text of every document that a search can retrieve."""
    return {hit.docid: index.get(hit.docid).text for hit in index.search("harbour", k=100)}


@pytest.fixture
def empty(backbone: str, tmp_path: Path) -> Index:
    """An index of one document that comes from no folder."""
    return small.create(tmp_path / "index", Corpus([Document("own", "A document of its own.")], name="own"), backbone, effort="quick")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    for name, text in zip(NAMES, TEXTS, strict=False):
        write(folder, name, text)
    return folder


def test_new_changed_and_gone_files_are_one_generation(empty: Index, folder: Path) -> None:
    first = empty.sync(folder, fast=True)
    assert sorted(first.added) == sorted(f"notes/{name}" for name in NAMES) and first.generation == 2
    write(folder, "a.txt", "Something else entirely.")
    write(folder, "new.txt", TEXTS[4])
    (folder / "b.md").unlink()
    second = empty.sync(folder, fast=True)
    assert (second.added, second.updated, second.deleted, second.unchanged) == (["notes/new.txt"], ["notes/a.txt"], ["notes/b.md"], 2)
    assert second.generation == 3 and empty.manifest.kind == "sync"
    assert empty.get("notes/a.txt").text == "Something else entirely." and empty.locate("notes/b.md").deleted  # type: ignore[union-attr]
    assert empty.get("own").text == "A document of its own."
    empty.rollback()
    assert "notes/b.md" in contents(empty) and "notes/new.txt" not in contents(empty)


def test_run_again_nothing_happens_and_no_unchanged_file_is_read(empty: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        os.utime(folder / name, (1e9, 1e9))
    empty.sync(folder, fast=True)
    monkeypatch.setattr("promptdsi.corpus.folder_state.read_file", lambda *arguments: pytest.fail("a file was read again"))
    report = empty.sync(folder, fast=True)
    assert (report.added, report.updated, report.deleted, report.unchanged, empty.generation) == ([], [], [], 4, 2)


def test_a_file_that_changed_a_moment_ago_is_read_again(empty: Index, folder: Path) -> None:
    empty.sync(folder, fast=True)
    before = (folder / "a.txt").stat()
    write(folder, "a.txt", TEXTS[0].replace("kettle", "bottle"))
    os.utime(folder / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time
    assert empty.sync(folder, fast=True).updated == ["notes/a.txt"]


def test_a_dry_run_changes_nothing(empty: Index, folder: Path) -> None:
    report = empty.sync(folder, dry_run=True)
    assert len(report.added) == 4 and empty.generation == 1 and not (folder / ".promptdsi").exists()


def test_equal_names_in_two_folders_never_meet(empty: Index, tmp_path: Path) -> None:
    folders = [tmp_path / "left" / "notes", tmp_path / "right" / "notes"]
    for folder, text in zip(folders, TEXTS, strict=False):
        write(folder, "a.txt", text)
    empty.sync(folders, fast=True)
    assert contents(empty) == {"own": "A document of its own.", "notes/a.txt": TEXTS[0], "notes 2/a.txt": TEXTS[1]}
    (folders[0] / "a.txt").unlink()
    assert empty.sync(folders[0], fast=True).deleted == ["notes/a.txt"] and "notes 2/a.txt" in contents(empty)


def test_the_folder_of_create_keeps_its_docids(backbone: str, folder: Path, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", Corpus.read(folder), backbone, effort="quick")
    assert index.sync(folder).unchanged == 4 and index.generation == 1
    write(folder, "d.txt", TEXTS[4])
    assert index.sync(folder, fast=True).added == ["d.txt"]
    assert index.add(Corpus.read(folder), update=True).unchanged == 5
    write(folder, "d.txt", "Another text.")
    assert index.add(Corpus.read(folder), update=True, fast=True).updated == 1  # without a name of its own
    assert index.sync(folder, fast=True).unchanged == 5


def test_a_file_that_cannot_be_read_any_more_keeps_its_last_version(empty: Index, folder: Path) -> None:
    empty.sync(folder, fast=True)
    (folder / "a.txt").write_bytes(b"\x00\x01\x02" * 50)
    notes = ReadNotes(skip=True)
    report = empty.sync(folder, fast=True, notes=notes)
    assert not report.deleted and empty.get("notes/a.txt").text == TEXTS[0] and "NUL" in str(notes.skipped[0])


def test_what_stands_in_a_folder_that_cannot_be_listed_is_not_gone(empty: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.sync(folder, fast=True)
    walk = os.walk

    def failing(top: Any, onerror: Any = None, **options: Any) -> Any:
        for parent, folders, names in walk(top, **options):
            if "inner" in folders:
                folders.remove("inner")
                onerror(PermissionError(13, "Permission denied", str(Path(parent, "inner"))))
            yield parent, folders, names

    monkeypatch.setattr(os, "walk", failing)
    notes = ReadNotes(skip=True)
    report = empty.sync(folder, notes=notes)
    assert not report.deleted and report.unchanged == 4 and "Permission denied" in str(notes.skipped[0])


def test_a_new_file_never_takes_another_documents_docid(backbone: str, folder: Path, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", Corpus.read(folder), backbone, effort="quick")
    index.add(Corpus([Document("e.txt", "From elsewhere."), Document("mail/f.txt", "From elsewhere too.")], name="other"), fast=True)
    write(folder, "e.txt", "A file of that name.")
    with pytest.raises(DataError, match=r"'e.txt' of a new file is another document's"):
        index.sync(folder, fast=True)
    write(tmp_path / "mail", "f.txt", "A file in a folder of that name.")
    assert index.sync(tmp_path / "mail", fast=True).added == ["mail 2/f.txt"]


def test_a_folder_that_is_gone_deletes_nothing(empty: Index, folder: Path) -> None:
    empty.sync(folder, fast=True)
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="nothing was deleted"):
        empty.sync(folder)
    with pytest.raises(UsageError, match="given twice"):
        empty.sync([folder, folder])


def test_links_are_not_followed_unless_asked(empty: Index, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "secret.txt", "What nobody meant to index.")
    (folder / "link.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    notes = ReadNotes(skip=True)
    assert len(empty.sync(folder, fast=True, notes=notes).added) == 4
    assert any("not followed" in line for line in notes.sentences())
    assert len(empty.sync(folder, fast=True, notes=ReadNotes(skip=True, follow_links=True)).added) == 2


def test_what_is_new_is_trained_like_any_corpus(empty: Index, folder: Path) -> None:
    report = empty.sync(folder)
    assert len(report.added) == 4 and not empty.manifest.corpora[-1].fast
    assert not empty.verify().problems


def test_a_folder_inside_or_around_a_followed_one_is_refused(empty: Index, folder: Path) -> None:
    empty.sync(folder, fast=True)
    with pytest.raises(UsageError, match=r"inner lies inside .*notes, which the index follows already"):
        empty.sync(folder / "inner", fast=True)
    with pytest.raises(UsageError, match=r"contains .*notes, which the index follows already"):
        empty.sync(folder.parent, fast=True)
    assert empty.generation == 2
    empty.delete([f"notes/{name}" for name in NAMES])
    assert len(empty.sync(folder / "inner", fast=True).added) == 2  # nothing of the other folder is left


def test_deleting_or_adding_a_file_of_a_followed_folder_says_what_sync_will_do(empty: Index, folder: Path, run: Any) -> None:
    empty.sync(folder, fast=True)
    warning = "notes/a.txt is still in notes/: the next `promptdsi sync` adds it again\n"
    deleted = run("delete", empty.path, "notes/a.txt", "own")
    assert "2 documents deleted; `undelete` shows them again\n" in deleted.stderr and deleted.stderr.endswith(warning)
    (folder / "b.md").unlink()
    outcome = run("delete", empty.path, "notes/b.md", "--json")
    assert '"still_in_folder": []' in outcome.stdout and "still in" not in outcome.stderr
    assert run("purge", empty.path).stderr.endswith(f"3 documents erased from every generation\n{warning}")
    added = run("add", empty.path, folder / "inner" / "a.txt", "--fast")
    assert added.returncode == 0 and "a.txt lies in notes/, which the index follows: with `promptdsi sync` it is in" in added.stderr
    assert "which the index follows" not in run("add", empty.path, folder.parent / "index" / "CURRENT").stderr
    log = run("log", empty.path).stdout
    assert " +4, fast " in log and " 3 documents " in log and "drift" not in log


def test_the_command_says_what_changes(empty: Index, folder: Path, run: Any) -> None:
    outcome = run("sync", empty.path, folder, "--dry-run")
    assert "+ notes/a.txt" in outcome.stderr and "would be 4 added" in outcome.stderr
    assert "4 added" in run("sync", empty.path, folder, "--fast").stderr
    assert "in step, 4 documents unchanged" in run("sync", empty.path, folder).stderr
    assert '"unchanged": 4' in run("sync", empty.path, folder, "--json").stdout
    assert run("sync", empty.path, folder / "nowhere").returncode == 1


class Folders(RuleBasedStateMachine):
    """Two folders with equal names in them, against a dictionary of docid to text."""

    start: Path  # an index that every example begins with a copy of

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.index = Index.open(small.copied(self.start, self.place / "index"))
        self.folders = {"notes": self.place / "left" / "notes", "notes 2": self.place / "right" / "notes"}
        for folder in self.folders.values():
            folder.mkdir(parents=True)
        self.files: dict[str, str] = {}
        self.indexed = {"own": "A document of its own."}
        self.index.sync(list(self.folders.values()))  # gives both their names

    @rule(where=st.sampled_from(["notes", "notes 2"]), name=st.sampled_from(NAMES), text=st.sampled_from(TEXTS))
    def write_file(self, where: str, name: str, text: str) -> None:
        write(self.folders[where], name, text)
        self.files[f"{where}/{name}"] = text

    @precondition(lambda self: getattr(self, "files", None))
    @rule(data=st.data())
    def remove_file(self, data: st.DataObject) -> None:
        docid = data.draw(st.sampled_from(sorted(self.files)))
        where, _, name = docid.partition("/")
        (self.folders[where] / name).unlink()
        del self.files[docid]

    @rule()
    def sync(self) -> None:
        before, same = self.index.generation, self.indexed == self.files | {"own": "A document of its own."}
        report = self.index.sync(list(self.folders.values()), fast=True)
        self.indexed = self.files | {"own": "A document of its own."}
        assert (self.index.generation == before) == same == (not (report.added or report.updated or report.deleted))

    @rule()
    def crash(self) -> None:
        with mock.patch.object(Store, "commit", side_effect=KeyboardInterrupt), mock.patch.object(Store, "clean"):
            try:
                self.index.sync(list(self.folders.values()), fast=True)
            except KeyboardInterrupt:
                self.index = Index.open(self.place / "index")

    @invariant()
    def holds_what_was_synced(self) -> None:
        if hasattr(self, "indexed"):
            assert contents(self.index) == self.indexed

    def teardown(self) -> None:
        if hasattr(self, "place"):
            shutil.rmtree(self.place)


def test_an_index_follows_its_folders(empty: Index) -> None:
    Folders.start = empty.path
    machine: Any = Folders.TestCase
    machine.settings = settings(max_examples=12, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck))
    machine().runTest()
