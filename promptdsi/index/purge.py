"""Purge: the bytes of a document leave every generation. What prompts or the encoder absorbed of it is not unlearned.

1. Blobs that hold something of the document are written anew without it: its row is zero, its docid and text are gone, its
   place stays, so that no other document moves.
2. A new generation names the new blobs and lists the old ones as to be erased; it becomes current. From here on the purge
   will be completed, by this process or by the next writer.
3. Older manifests are rewritten to name the new blobs, then the old blobs are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from promptdsi.errors import DataError, PromptDSIError
from promptdsi.index.documents import Documents, write_documents
from promptdsi.index.lists import get_list, put_list
from promptdsi.index.manifest import PARTS, Entry, Manifest
from promptdsi.index.rows import put_rows
from promptdsi.index.store import Store


class NothingToPurge(PromptDSIError):
    """Every deleted document has been purged before."""


Places = dict[int, set[int]]  # generation a corpus arrived in → places in it to erase


def purge(store: Store, docids: Sequence[str] | None = None) -> Manifest:
    """Erase the named documents, every version of them, or all deleted ones.

    A purge that was cut off is completed first; that is all a call without names then does, and names it had erased are fine.
    """
    with store.writing():
        current = store.manifest()
        was_pending = pending(store, current)
        parent = finish_purge(store, current)
        if was_pending and docids is None:
            return parent
        store.clean()
        history = store.history()
        for manifest in history:
            store.check(manifest, {entry.ids for entry in manifest.corpora})
        places = _deleted(store, history) if docids is None else _named(store, history, docids, must_be_there=not was_pending)
        if not places:
            if was_pending:
                return parent
            raise NothingToPurge(f"{store.folder}: no deleted document is left to purge")
        renamed = _without(store, history, places)
        count = sum(len(some) for some in places.values())
        made = _buried(store, parent.renamed(renamed)).next("purge", event={"documents": count}, erase=renamed)
        if in_use := made.blobs() & renamed.keys():
            raise AssertionError(f"purge would remove {min(in_use)}, which is in use")
        store.commit(made)
        return finish_purge(store, store.manifest())


def finish_purge(store: Store, current: Manifest) -> Manifest:
    """Complete the purge that made the current generation, if it was cut off; every writer does this first."""
    if pending(store, current):
        for manifest in store.history()[:-1]:
            if manifest.blobs() & current.erase.keys() or current.erase.keys() & set(manifest.retired):
                store.write_manifest(_buried(store, manifest.renamed(current.erase)))
        store.blobs.remove(store.blobs.names() & current.erase.keys())
    return current


def pending(store: Store, current: Manifest) -> bool:
    """Whether something the current generation's purge should have erased is still there."""
    return bool(store.blobs.names() & current.erase.keys())


def _named(store: Store, history: Sequence[Manifest], docids: Iterable[str], *, must_be_there: bool = True) -> Places:
    """Where the named documents are, in any generation: one that was rolled back is still on disk."""
    wanted, found, seen = set(docids), {}, set()
    for entry in _corpora(history):
        known = store.ids(entry.ids).docids
        places = {place for place, docid in enumerate(known) if docid in wanted}
        seen |= {known[place] for place in places}
        if places:
            found[entry.since] = places
    if must_be_there and (missing := sorted(wanted - seen)):
        raise DataError(f"holds no document {missing[0]!r}", path=store.folder)
    return found


def _deleted(store: Store, history: Sequence[Manifest]) -> Places:
    """Where the deleted documents are, in any generation, and the versions that were replaced by a living one."""
    current = history[-1]
    deleted: dict[int, set[int]] = {}
    live: set[str | None] = set()
    names: set[str] = set()
    for entry, gone in zip(current.corpora, current.deleted_positions(), strict=True):
        docids, hidden = store.ids(entry.ids).docids, set(gone)
        deleted[entry.since] = {place for place in gone if docids[place] is not None}
        names |= {docid for place in deleted[entry.since] if (docid := docids[place]) is not None}
        live |= {docid for place, docid in enumerate(docids) if place not in hidden}
    found = _named(store, history, names - live)
    for since, places in deleted.items():
        if places:
            found[since] = found.get(since, set()) | places
    return found


def _corpora(history: Iterable[Manifest]) -> Iterable[Entry]:
    """Each corpus once, of all generations."""
    return {entry.since: entry for manifest in history for entry in manifest.corpora}.values()


def _without(store: Store, history: Iterable[Manifest], places: Places) -> dict[str, str]:
    """Write anew every blob of any generation that holds something of the documents: old name → new name.

    Each is checked before: a damaged blob must not come out of this with a right checksum.
    """
    renamed: dict[str, str] = {}
    for manifest in history:
        for entry in (entry for entry in manifest.corpora if entry.since in places):
            for part in PARTS:
                name = getattr(entry, part)
                if name is not None and name not in renamed:
                    store.blobs.check(name, manifest.sizes[name])
                    renamed[name] = _rewritten(store, entry, part, places[entry.since])
    return {old: new for old, new in renamed.items() if old != new}


def _rewritten(store: Store, entry: Entry, part: str, places: set[int]) -> str:
    blobs, name, since = store.blobs, getattr(entry, part), entry.since
    if part == "rows":
        rows = blobs.arrays(name)["rows"].copy()
        rows[sorted(places)] = 0.0
        return put_rows(store, rows, since=since)
    ids = store.ids(entry.ids)
    if part == "ids":
        return blobs.put_json(ids.without(places).to_json())
    if part == "documents":
        opened = Documents(blobs.path(name))
        kept = [(place, document) for place, document in opened if place not in places]
        opened.close()
        return write_documents(blobs, kept, since=since)
    gone = {ids.docids[place] for place in places}
    if part == "probes":
        return put_list(store, [one for one in get_list(store, name) if not gone.intersection(one["docids"])], since=since)
    return put_list(store, [one for one in get_list(store, name) if one["docid"] not in gone], since=since)


def _buried(store: Store, manifest: Manifest) -> Manifest:
    """A generation in which every row without a docid is dead."""
    gone = set(manifest.tombstones)
    for entry, first in zip(manifest.corpora, manifest.firsts(), strict=True):
        docids = store.ids(entry.ids).docids
        gone |= {first + place for place, docid in enumerate(docids) if docid is None}
    return replace(manifest, tombstones=tuple(sorted(gone)))
