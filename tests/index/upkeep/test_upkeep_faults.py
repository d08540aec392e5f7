"""Pruning, merging, tags and backups, killed at any step or without power."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import small
from faults import Died, Faults, PowerLoss

from promptdsi import Corpus, Index, PromptDSIError

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
    place, before = small.copied(many, tmp_path / "index"), small.signatures(many)
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
        seen = small.signatures(place) if step % 6 == 0 else {}
        assert all(before.get(number, before[9]) == signature for number, signature in seen.items()), counted.log[step - 1]
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
    assert generations == {9, 10}
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
    assert Index.restore(tmp_path / "backup", tmp_path / "restored") == 10
    assert small.signatures(tmp_path / "restored") == small.signatures(place)


def test_power_loss_after_a_prune_or_a_backup(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = small.copied(many, tmp_path / "index")
    for what, root in (("prune", place), ("merge", place), ("backup", tmp_path / "backup")):
        with monkeypatch.context() as patch:
            power = PowerLoss(root)
            power.install(patch)
            change(what, place)
        seen = small.signatures(place)
        power.lose()
        assert small.signatures(place) == seen and Index.open(place, device="cpu").verify().problems == []
    assert Index.restore(tmp_path / "backup", tmp_path / "restored") and small.signatures(tmp_path / "restored") == small.signatures(place)
