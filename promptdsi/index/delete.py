"""Delete, undelete and rollback: each is a new manifest over the same blobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from promptdsi.errors import DataError, UsageError
from promptdsi.index.blobs import is_plain
from promptdsi.index.lookup import Lookup, lookup_of
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import DiskUsage
from promptdsi.index.store import Store

if TYPE_CHECKING:
    from promptdsi.index.shards import Cluster


def delete(store: Store, docids: Sequence[str], cluster: Cluster | None = None) -> Manifest:
    """Hide documents. Their rows stay, so that `undelete` brings them back; no other document's score changes."""
    with store.writing():
        parent = _parent(store, cluster)
        versions, deleted = _versions(store, lookup_of(store, parent, cluster), docids), set(parent.tombstones)
        hidden = {number for docid in docids for number in versions[docid] if number not in deleted}
        if not hidden:
            raise DataError(f"{docids[0]!r} is deleted already", path=store.folder)
        return store.commit(parent.next("delete", tombstones=tuple(sorted(deleted | hidden)), event={"documents": len(hidden)}))


def undelete(store: Store, docids: Sequence[str], cluster: Cluster | None = None) -> Manifest:
    """Show documents again that were deleted and not purged: the newest version of each."""
    with store.writing():
        parent = _parent(store, cluster)
        versions, deleted = _versions(store, lookup_of(store, parent, cluster), docids), set(parent.tombstones)
        if live := [docid for docid in docids if not deleted.issuperset(versions[docid])]:
            raise DataError(f"{live[0]!r} is not deleted", path=store.folder)
        shown = {versions[docid][-1] for docid in docids}
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


def deleted_docids(store: Store, manifest: Manifest) -> list[str]:
    """The docids of which every version is deleted and some is not purged. Only those of deleted documents are held."""
    deleted: dict[str, None] = {}  # a set in order
    live: set[str | None] = set()
    positions = list(zip(manifest.corpora, manifest.deleted_positions(), strict=True))
    for entry, hidden in positions:
        docids = store.docids(entry) if hidden else []
        deleted |= dict.fromkeys(docid for position in hidden if (docid := docids[position]) is not None)
    for entry, hidden in positions if deleted else ():
        numbers = set(hidden)
        live |= {docid for position, docid in enumerate(store.docids(entry)) if docid in deleted and position not in numbers}
    return [docid for docid in deleted if docid not in live]


def folders_of(store: Store, manifest: Manifest, docids: Sequence[str] | None = None) -> dict[str, Path]:
    """The folders in which files of these documents, by default the deleted ones, still lie."""
    docids = deleted_docids(store, manifest) if docids is None else docids
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
    return DiskUsage(size, len(deleted_docids(store, manifest)), len(store.leftovers()), store.purge_pending(manifest))


def _ids_blobs(manifest: Manifest) -> set[str]:
    return {entry.ids for entry in manifest.corpora}


def _parent(store: Store, cluster: Cluster | None) -> Manifest:
    """The current generation; ids are read, and so verified, here or by the shards."""
    return store.ready(_ids_blobs if cluster is None else lambda manifest: set())


def _versions(store: Store, lookup: Lookup, docids: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of all documents with each docid; none is an error."""
    versions = lookup.versions(docids)
    if unknown := [docid for docid in docids if not versions[docid]]:
        raise DataError(f"holds no document {unknown[0]!r}{lookup.similar_docid(unknown[0])}", path=store.folder)
    return versions


def docid_list(docids: str | Sequence[str]) -> list[str]:
    """One docid or several as a list; none at all is an error."""
    listed = [docids] if isinstance(docids, str) else list(docids)
    if not listed or "" in listed:
        raise UsageError("no docid was given")
    return listed
