"""Delete, undelete and rollback: each is a new manifest over the same blobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from promptdsi.errors import DataError, UsageError
from promptdsi.index.blobs import is_plain
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import DiskUsage
from promptdsi.index.store import Store
from promptdsi.wording import suggest


def delete(store: Store, docids: Sequence[str]) -> Manifest:
    """Hide documents. Their rows stay, so that `undelete` brings them back; no other document's score changes."""
    with store.writing():
        parent = store.ready(_ids_blobs)
        rows, deleted = _rows_of(store, parent, docids), set(parent.tombstones)
        hidden = {row for docid in docids for row in rows[docid] if row not in deleted}
        if not hidden:
            raise DataError(f"{docids[0]!r} is deleted already", path=store.folder)
        return store.commit(parent.next("delete", tombstones=tuple(sorted(deleted | hidden)), event={"documents": len(hidden)}))


def undelete(store: Store, docids: Sequence[str]) -> Manifest:
    """Show documents again that were deleted and not purged: the newest version of each."""
    with store.writing():
        parent = store.ready(_ids_blobs)
        rows, deleted = _rows_of(store, parent, docids), set(parent.tombstones)
        if live := [docid for docid in docids if not deleted.issuperset(rows[docid])]:
            raise DataError(f"{live[0]!r} is not deleted", path=store.folder)
        shown = {rows[docid][-1] for docid in docids}
        return store.commit(parent.next("undelete", tombstones=tuple(sorted(deleted - shown)), event={"documents": len(shown)}))


def rollback(store: Store, to: int | None = None) -> Manifest:
    """Commit a generation that equals an earlier one, by default the one before the last change; called again, one further back.

    Nothing is lost: every generation stays, and `to` leads to any of them.
    """
    with store.writing():
        parent = store.ready(_ids_blobs)
        target = to if to is not None else before_change(store, parent.number)
        if target is None or target == parent.number:
            raise UsageError(f"{store.folder} is at generation {parent.number}; there is nothing to go back to")
        state = store.manifest(target)
        store.check(state, state.blobs())
        return store.commit(replace(state.next("rollback", event={"to": target}), number=parent.number + 1, parent=parent.number))


def before_change(store: Store, number: int) -> int | None:
    """The generation before the change that this one shows: a rollback shows the change it went back to, a prune the one before it."""
    step = store.manifests.content(number)
    while step["kind"] in ("rollback", "prune"):
        step = store.manifests.content(step["event"]["to"] if step["kind"] == "rollback" else step["parent"])
    parent: int | None = step["parent"]
    return parent


def rows_by_docid(store: Store, manifest: Manifest) -> dict[str, list[int]]:
    """Every row of each docid, oldest first: a document that was replaced has several."""
    rows: dict[str, list[int]] = {}
    row = 0
    for entry in manifest.corpora:
        for docid in store.docids(entry):
            if docid is not None:
                rows.setdefault(docid, []).append(row)
            row += 1
    return rows


def folders_of(store: Store, manifest: Manifest, docids: Sequence[str] | None = None) -> dict[str, Path]:
    """The folders in which files of these documents, by default the deleted ones, still lie."""
    if docids is None:
        hidden = set(manifest.tombstones)
        docids = [docid for docid, rows in rows_by_docid(store, manifest).items() if hidden.issuperset(rows)]
    named, folders = set(docids), dict[str, Path]()
    for arrival, entry, positions, _ in manifest.arrivals():
        docids_here = store.docids(entry)[positions.start : positions.stop] if arrival.source is not None else []
        for docid in named.intersection(filter(None, docids_here)):
            if (folder := Path(arrival.source or "")).joinpath(docid.removeprefix(arrival.prefix)).is_file():
                folders[docid] = folder
    return {docid: folders[docid] for docid in docids if docid in folders}


def disk_usage(store: Store, manifest: Manifest) -> DiskUsage:
    """The size of the folder, and what `undelete` could show, `purge` or the next write remove."""
    size = sum(path.stat().st_size for path in store.folder.rglob("*") if is_plain(path))
    hidden = set(manifest.tombstones)
    deleted = sum(hidden.issuperset(rows) for rows in rows_by_docid(store, manifest).values())
    return DiskUsage(size, deleted, len(store.leftovers()), store.purge_pending(manifest))


def _ids_blobs(manifest: Manifest) -> set[str]:
    return {entry.ids for entry in manifest.corpora}


def _rows_of(store: Store, manifest: Manifest, docids: Sequence[str]) -> dict[str, list[int]]:
    """`rows_by_docid`, after checking that these docids are in it."""
    rows = rows_by_docid(store, manifest)
    if unknown := [docid for docid in docids if docid not in rows]:
        raise DataError(f"holds no document {unknown[0]!r}{suggest(unknown[0], rows)}", path=store.folder)
    return rows


def docid_list(docids: str | Sequence[str]) -> list[str]:
    """One docid or several as a list; none at all is an error."""
    listed = [docids] if isinstance(docids, str) else list(docids)
    if not listed or "" in listed:
        raise UsageError("no docid was given")
    return listed
