"""Backups: incremental, of an index in use, of what was purged, and such as strangers wrote."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import forged
import pytest
import small

from promptdsi import Corpus, DataError, Document, Index, PromptDSIError, UsageError


def test_a_backup_is_incremental_and_restores_every_generation(place: Path, tmp_path: Path, run: Any, corpora: list[Corpus]) -> None:
    index, folder = Index.open(place, device="cpu"), tmp_path / "backup"
    index.tag("release", 3)
    index.evaluate(corpora[1], record=True)
    first = json.loads(run("backup", place, folder, "--json").stdout)
    assert first["generation"] == 9 and first["copied"] == first["blobs"] + 9 + 2
    assert index.backup(folder).copied == 0
    index.add(Corpus([Document("late", "late words")], name="late"))
    assert index.backup(folder).copied == 5  # rows, ids, words and documents, and a manifest
    damaged = max((folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert index.backup(folder).copied == 1  # right size, wrong checksum
    outcome = run("restore", folder, tmp_path / "restored", "--json")
    assert json.loads(outcome.stdout) == {"generation": 10}
    restored = Index.open(tmp_path / "restored", device="cpu")
    assert small.signatures(tmp_path / "restored") == small.signatures(place) and restored.tags() == {"release": 3}
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
    assert victim.text.encode()[:60] in small.contents(folder)
    index.purge(victim.docid)
    index.backup(folder)
    for content in (victim.text.encode()[:60], json.dumps(victim.docid).encode()):
        assert content not in small.contents(folder)
    Index.restore(folder, tmp_path / "restored")
    assert small.signatures(tmp_path / "restored") == small.signatures(place)


def test_a_backup_of_an_index_in_use(place: Path, tmp_path: Path, corpora: list[Corpus]) -> None:
    """A writer commits, purges and prunes and a reader searches all the time: every backup restores to a generation there was."""
    seen: dict[int, Any] = {}
    stop, failures = threading.Event(), list[BaseException]()
    seen[9] = small.signature(place)

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
