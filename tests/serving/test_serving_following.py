"""The server follows its index: new generations, damaged ones, purges, another index in the same place."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import served
import small

from promptdsi import Corpus, Index
from promptdsi.index.store import Store


def test_a_generation_of_another_writer_is_served_within_a_second(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    Index.open(place, device="cpu").add(corpora[2])
    began = time.monotonic()
    served.wait_until(lambda: writable.search("water")["generation"] == 3)
    opened = time.monotonic()
    Index.open(place, device="cpu").search("water")  # how long this machine takes to open it, busy as it is now
    assert opened - began < 1.0 + 3 * (time.monotonic() - opened)
    docid = corpora[2].documents[0].docid
    assert docid in {hit["docid"] for hit in writable.search("water", k=1000)["results"][0]["hits"]}


def test_folders_are_named_with_the_generation_that_last_changed_them(writable: served.Served, place: Path, tmp_path: Path) -> None:
    assert writable.client.get("/api/sync").json() == {"generation": 2, "folders": []}
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("tea.txt", "lamp.txt"):
        (folder / name).write_text(f"A note about a {name}.")
    index = Index.open(place, device="cpu")

    def synced() -> list[tuple[str, str, int, int]]:
        served.wait_until(lambda: writable.client.get("/api/sync").json()["generation"] == index.generation)
        answer = writable.client.get("/api/sync")
        assert str(tmp_path) not in answer.text
        times = {entry["generation"]: entry["time"] for entry in writable.client.get("/api/generations").json()["generations"]}
        assert all(entry["time"] == times[entry["generation"]] for entry in answer.json()["folders"])
        return [(entry["folder"], entry["prefix"], entry["documents"], entry["generation"]) for entry in answer.json()["folders"]]

    index.sync(folder, fast=True)
    assert synced() == [("notes", "notes/", 2, 3)]
    index.teach([("where is the lamp", "notes/lamp.txt")])
    assert synced() == [("notes", "notes/", 2, 3)]  # a correction is not a sync
    (folder / "tea.txt").unlink()
    index.sync(folder, fast=True)
    assert synced() == [("notes", "notes/", 1, 5)]  # nor does it need anything new
    index.rollback(3)
    assert synced() == [("notes", "notes/", 2, 3)]  # what was rolled back is undone
    index.rollback(2)
    assert synced() == []


def test_a_generation_that_cannot_be_opened_leaves_the_one_before(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    before = writable.search("water", k=1000)
    blobs = set((place / "blobs").iterdir())
    Index.open(place, device="cpu").add(corpora[2])
    # The server may have opened it by now; a second one is damaged before its name is known.
    store = Store(place)
    manifest = store.manifest(3)
    (place / "blobs" / manifest.corpora[2].rows).write_bytes(b"damaged")
    store.commit(manifest.next("delete", tombstones=(0,)))
    assert (set((place / "blobs").iterdir())) > blobs
    served.wait_until(lambda: "promptdsi_stale 1.0" in writable.client.get("/metrics").text)
    after = writable.search("water", k=1000)
    assert after["generation"] in (2, 3)
    assert after == before or after["generation"] == 3
    assert writable.client.get("/readyz").status_code == 200


def test_another_index_in_the_same_place_is_noticed(writable: served.Served, place: Path, corpora: list[Corpus], backbone: str) -> None:
    """Also when it has the same generation number: the contents of CURRENT count, not the number."""
    first = corpora[2].documents[0]
    shutil.rmtree(place)
    other = small.create(place, corpora[2], backbone)
    other.add(corpora[3])
    served.wait_until(lambda: writable.client.get("/api/index").json()["documents"] == len(other))
    assert writable.client.get(f"/api/documents/{first.docid}").json()["text"] == first.text
    assert writable.client.get(f"/api/documents/{corpora[0].documents[0].docid}").status_code == 404


def test_nothing_that_was_purged_stays_open(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    docid = corpora[1].documents[0].docid
    writable.search("water", k=1000)
    writable.search("water", k=1000, at=1)
    Index.open(place, device="cpu").purge(docid)
    served.wait_until(lambda: writable.search("water", k=1000)["generation"] == 3)
    served.wait_until(lambda: not [name for name in open_files(place) if name.endswith(".sqlite (deleted)")])


def open_files(folder: Path) -> list[str]:
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(entry))
    return [name for name in names if name.startswith(str(folder))]


def test_files_do_not_pile_up_over_generations(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    docid = corpora[0].documents[0].docid
    counts = []
    for _ in range(8):
        assert writable.client.delete(f"/api/documents/{docid}").status_code == 200
        assert writable.client.post("/api/undelete", json={"docids": [docid]}).status_code == 200
        writable.search("water", k=1000)
        counts.append(len(open_files(place)))
    assert max(counts[2:]) <= counts[1] + 2, counts


def test_a_purge_that_is_under_way_is_respected(writable: served.Served, place: Path, corpora: list[Corpus], monkeypatch: Any) -> None:
    """An older generation is opened without what the newest says is to be erased, even before its manifest is rewritten."""
    docid = corpora[1].documents[0].docid
    monkeypatch.setattr(Store, "finish", lambda store, manifest: manifest)  # cut off right after the commit
    with contextlib.suppress(Exception):
        Index.open(place, device="cpu").purge(docid)
    served.wait_until(lambda: writable.search("water")["generation"] == 3)
    assert writable.client.get(f"/api/documents/{docid}", params={"at": 2}).status_code == 404


def test_an_index_that_is_mended_is_served_again(place: Path) -> None:
    mark = (place / "CURRENT").read_bytes()
    (place / "CURRENT").unlink()
    with served.serving(place) as running:
        assert running.client.get("/readyz").status_code == 503
        (place / "CURRENT").write_bytes(mark)
        served.wait_until(lambda: running.client.get("/readyz").status_code == 200)
        assert running.search("water")["results"]


def test_what_is_purged_is_no_longer_served(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    docid = corpora[1].documents[0].docid
    assert writable.client.get(f"/api/documents/{docid}", params={"at": 2}).status_code == 200
    Index.open(place, device="cpu").purge(docid)
    served.wait_until(lambda: writable.search("water")["generation"] == 3)
    for at in (None, 1, 2, 3):
        answer = writable.client.get(f"/api/documents/{docid}", params={"at": at} if at else {})
        assert answer.status_code == 404
