"""Writing to an index whose rows lie in shards gives what writing to it in one process gives. The shards are in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sharded
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from promptdsi import Corpus, DataError, Document, Index, UsageError
from promptdsi.index.manifest import Manifest

ON = "ray://local"
SHARDS = st.sampled_from([1, 2, 3, 5, 40])


@pytest.fixture(scope="module", params=[True, False], ids=["words", "rows alone"])
def built(request: pytest.FixtureRequest, corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sharded.parts_of(9):
        path = tmp_path_factory.mktemp("writes") / "index"
        return sharded.build(path, corpora, backbone, words=request.param, keep_probes=4, keep_queries=True)


def both(built: Path, folder: Path) -> tuple[Index, Index]:
    """The same index opened in one process, and on shards."""
    local, far = (small.copied(built, folder / name) for name in ("local", "far"))
    return Index.open(local, device="cpu"), Index.open(far, device="cpu", on=ON)


def content(manifest: Manifest) -> dict[str, Any]:
    """A generation without times."""
    return {**manifest.__dict__, "time": "", "event": {key: value for key, value in manifest.event.items() if key != "seconds"}}


def assert_same_scores(far: Index, local: Index) -> None:
    """Rows that were learned over shards: scores to 1e-5, since float32 products are summed in another order."""
    for expected, hits in zip(local.search(sharded.QUERIES, k=60), far.search(sharded.QUERIES, k=60), strict=True):
        assert {hit.docid: hit.score for hit in hits} == pytest.approx({hit.docid: hit.score for hit in expected}, rel=1e-5, abs=1e-6)


@given(data=st.data())
@settings(max_examples=6)
def test_add_learns_the_same_rows(built: Path, corpora: list[Corpus], tmp_path: Path, data: st.DataObject) -> None:
    shards, part = data.draw(SHARDS, "shards"), data.draw(st.sampled_from([2, 9, 1000]), "part")
    update, fast = data.draw(st.booleans(), "update"), data.draw(st.booleans(), "fast")
    with sharded.without_ray(shards), sharded.parts_of(part):
        local, far = both(built, tmp_path)
        changed = [document._replace(text=f"{document.text} More boats.") for document in corpora[0].documents[1:3]]
        new = Corpus([*corpora[1].documents, *(changed if update else [])], corpora[1].queries, corpora[1].qrels, name="next")
        expected, report = (index.add(new, update=update, fast=fast, keep_queries=True) for index in (local, far))
        assert replace(report, seconds=0) == replace(expected, seconds=0) and report.drift is not None
        theirs, ours = content(local.manifest), content(far.manifest)
        rows = [[entry.rows for entry in manifest["corpora"]] for manifest in (theirs, ours)]
        before = [entry.rows for entry in far.log()[-2].corpora]
        assert rows[0][: len(before)] == rows[1][: len(before)] == before and len(rows[0]) == len(rows[1])
        assert [entry.words for entry in local.manifest.corpora] == [entry.words for entry in far.manifest.corpora]
        for field in ("statistics", "metadata", "tombstones"):
            assert theirs[field] == ours[field]
        assert_same_scores(far, local)
        assert Index.open(far.path, device="cpu").search(sharded.QUERIES, k=60) == far.search(sharded.QUERIES, k=60)


@pytest.mark.parametrize("shards", [1, 4])
def test_delete_undelete_teach_and_purge_write_the_same_files(built: Path, shards: int, tmp_path: Path) -> None:
    with sharded.without_ray(shards):
        local, far = both(built, tmp_path)
        for index in (local, far):
            index.delete(["tie-3", "later-1"])
            index.undelete("tie-3")
            index.teach([("where do boats wait", "later-4"), ("hand rolled", "tie-3")])
            index.purge(["tie-5", "later-4"])
        for ours, theirs in zip(far.log(), local.log(), strict=True):
            expected = content(theirs)
            assert {key: value for key, value in content(ours).items() if value != expected[key]} == {}
        assert far.search(sharded.QUERIES, k=60) == local.search(sharded.QUERIES, k=60)
        assert far.disk_usage()[1:] == local.disk_usage()[1:] and far.verify().problems == []


def test_sync_brings_folders_in_step_over_shards(built: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for name, text in (("tea.txt", "Green tea leaves."), ("boats.txt", "Boats wait in a lock."), ("owls.txt", "Owls hunt.")):
        (notes / name).write_text(text)
    with sharded.without_ray(3):
        local, far = both(built, tmp_path)
        for index in (local, far):
            assert index.sync(notes).added == ["notes/boats.txt", "notes/owls.txt", "notes/tea.txt"]
        assert_same_scores(far, local)
        (notes / "tea.txt").write_text("Black tea leaves.")
        (notes / "owls.txt").unlink()
        (notes / "bats.txt").write_text("Bats hunt at night.")
        for index in (local, far):
            report = index.sync(notes)
            assert (report.added, report.updated, report.deleted) == (["notes/bats.txt"], ["notes/tea.txt"], ["notes/owls.txt"])
        assert far.manifest.tombstones == local.manifest.tombstones
        assert_same_scores(far, local)
        other = tmp_path / "other" / "notes"  # the name is taken by the paths of another folder
        other.mkdir(parents=True)
        (other / "tea.txt").write_text("White tea.")
        assert far.sync(other, fast=True).added == local.sync(other, fast=True).added == ["notes 2/tea.txt"]


def test_what_is_wrong_is_refused_in_the_same_words(built: Path, corpora: list[Corpus], tmp_path: Path) -> None:
    with sharded.without_ray(3):
        indexes = both(built, tmp_path)
        changed = Corpus([Document("tie-3", "Other words.")], name="changed")
        for attempt in (
            lambda index: index.delete("tie-33"),
            lambda index: index.delete("tie-9"),
            lambda index: index.undelete("tie-3"),
            lambda index: index.add(changed),
            lambda index: index.teach([("tea", "nowhere")]),
            lambda index: index.add(corpora[1], max_drift=2.0),
        ):
            problems = []
            for index in indexes:
                with pytest.raises((DataError, UsageError)) as error:
                    attempt(index)
                problems.append(str(error.value).replace(str(index.path), ""))
            assert problems[0] == problems[1]
        assert indexes[1].add(Corpus(corpora[0].documents[1:4], name="again")).unchanged == 3
        assert indexes[0].generation == indexes[1].generation


def test_prompts_are_refused_with_the_reason(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    small.create(tmp_path / "index", corpora[0], backbone, prompts="l2p")
    with sharded.without_ray(2):
        far = Index.open(tmp_path / "index", device="cpu", on=ON)
        with pytest.raises(UsageError, match="every step would wait for all shards"):
            far.add(corpora[1])
        assert far.generation == 1 and far.add(corpora[1], fast=True).generation == 2


def test_nothing_of_old_documents_is_read_here(built: Path, corpora: list[Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster the coordinator opens no rows, ids or words of old corpora: those of the shards are read by other stores."""
    with sharded.without_ray(3):
        _, far = both(built, tmp_path)
        opened: list[str] = []
        old = {name for entry in far.manifest.corpora for name in (entry.rows, entry.ids, entry.words)}
        original = type(far.store.blobs).path

        def path(blobs: Any, name: str) -> Path:
            if blobs is far.store.blobs:
                opened.append(name)
            return original(blobs, name)

        monkeypatch.setattr(type(far.store.blobs), "path", path)
        far.add(corpora[1])
        far.delete("later-0")
        assert opened and not old.intersection(opened)
