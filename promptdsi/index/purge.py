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
from promptdsi.index.ids import Ids
from promptdsi.index.manifest import PARTS, Entry, Manifest, now
from promptdsi.index.store import Store
from promptdsi.methods.storage import to_bytes

Places = dict[int, set[int]]  # generation a corpus arrived in → places in it to erase


def purge(store: Store, docids: Sequence[str] = ()) -> Manifest:
    """Erase the named documents, every version of them, or all deleted ones."""
    with store.writing():
        parent = finish_purge(store, store.manifest())
        store.clean()
        history = store.history()
        places = _named(store, history, docids) if docids else _deleted(store, parent)
        if not places:
            raise PromptDSIError(f"{store.folder}: no deleted document is left to purge")
        renamed = _without(store, history, places)
        made = _buried(store, parent.renamed(renamed))
        count = sum(len(some) for some in places.values())
        made = replace(made, number=parent.number + 1, parent=parent.number, kind="purge", time=now(), event={"documents": count})
        made = replace(made, erase=renamed)
        store.commit(made)
        return finish_purge(store, store.manifest())


def finish_purge(store: Store, current: Manifest) -> Manifest:
    """Complete the purge that made the current generation, if it was cut off; every writer does this first."""
    if pending(store, current):
        for number in range(1, current.number):
            manifest = store.manifest(number)
            if manifest.blobs() & current.erase.keys():
                store.write_manifest(_buried(store, manifest.renamed(current.erase)))
        store.blobs.remove(store.blobs.names() & current.erase.keys())
    return current


def pending(store: Store, current: Manifest) -> bool:
    """Whether something the current generation's purge should have erased is still there."""
    return bool(store.blobs.names() & current.erase.keys())


def _named(store: Store, history: Iterable[Manifest], docids: Sequence[str]) -> Places:
    """Where the named documents are, in any generation: one that was rolled back is still on disk."""
    wanted, found, seen = set(docids), {}, set()
    for entry in _corpora(history):
        ids = Ids.from_json(store.blobs.json(entry.ids))
        places = {place for place, docid in enumerate(ids.docids) if docid in wanted}
        seen |= {ids.docids[place] for place in places}
        if places:
            found[entry.since] = places
    if missing := sorted(wanted - seen):
        raise DataError(f"holds no document {missing[0]!r}", path=store.folder)
    return found


def _deleted(store: Store, current: Manifest) -> Places:
    """Where the deleted documents are that were not purged before."""
    found = {}
    for entry, gone in zip(current.corpora, current.dead_places(), strict=True):
        docids = Ids.from_json(store.blobs.json(entry.ids)).docids
        places = {place for place in gone if docids[place] is not None}
        if places:
            found[entry.since] = places
    return found


def _corpora(history: Iterable[Manifest]) -> Iterable[Entry]:
    """Each corpus once, of all generations."""
    return {entry.since: entry for manifest in history for entry in manifest.corpora}.values()


def _without(store: Store, history: Iterable[Manifest], places: Places) -> dict[str, str]:
    """Write anew every blob of any generation that holds something of the documents: old name → new name."""
    renamed: dict[str, str] = {}
    for entry in (entry for manifest in history for entry in manifest.corpora if entry.since in places):
        for part in PARTS:
            name = getattr(entry, part)
            if name is not None and name not in renamed:
                store.blobs.path(name)
                renamed[name] = _rewritten(store, entry, part, places[entry.since])
    return {old: new for old, new in renamed.items() if old != new}


def _rewritten(store: Store, entry: Entry, part: str, places: set[int]) -> str:
    blobs, name = store.blobs, getattr(entry, part)
    if part == "rows":
        rows = blobs.tensors(name)["rows"].clone()
        rows[sorted(places)] = 0.0
        return blobs.put(to_bytes({"rows": rows}), "safetensors")
    ids = Ids.from_json(blobs.json(entry.ids))
    if part == "ids":
        return blobs.put_json(ids.without(places).to_json())
    if part == "documents":
        opened = Documents(blobs.path(name))
        kept = [(place, document) for place, document in opened if place not in places]
        opened.close()
        return write_documents(blobs, kept, store="text")
    gone = {ids.docids[place] for place in places}
    if part == "probes":
        return blobs.put_json([one for one in blobs.json(name) if not gone.intersection(one["docids"])])
    return blobs.put_json([one for one in blobs.json(name) if one["docid"] not in gone])


def _buried(store: Store, manifest: Manifest) -> Manifest:
    """A generation in which every row without a docid is dead."""
    gone = set(manifest.tombstones)
    for entry, first in zip(manifest.corpora, manifest.firsts(), strict=True):
        docids = Ids.from_json(store.blobs.json(entry.ids)).docids
        gone |= {first + place for place, docid in enumerate(docids) if docid is None}
    return replace(manifest, tombstones=tuple(sorted(gone)))
