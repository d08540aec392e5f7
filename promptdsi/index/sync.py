"""Bring an index in step with folders: what is new is added, what changed is replaced, what is gone is deleted, in one generation.

A document is known by its folder and its path in it. The folder that an index was created from, or that was added, keeps its docids;
of any other folder the docids begin with its name, so that equal file names in two folders never meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from promptdsi.corpus.corpus import Corpus, ReadNotes
from promptdsi.corpus.folder_state import FolderState, scan
from promptdsi.engine.passage_store import LiveDocument
from promptdsi.errors import DataError, UsageError
from promptdsi.index.arrivals import unique_name
from promptdsi.index.blobs import content_hash
from promptdsi.index.lookup import Lookup, lookup_of
from promptdsi.index.manifest import Manifest
from promptdsi.index.method_io import model_blobs, training_blobs
from promptdsi.index.results import SyncReport
from promptdsi.index.shards import Cluster
from promptdsi.index.store import Store
from promptdsi.index.teach import count_taught
from promptdsi.index.update import Options, check_drift, evaluated, learn_corpus, learning, load_seeded, on_interrupt


class SyncFolder(NamedTuple):
    """A folder, what its docids begin with, and its documents in the index: docid → (document number, content hash)."""

    folder: Path
    prefix: str
    live: dict[str, LiveDocument]


class FolderChanges(NamedTuple):
    """What differs between a folder and the index."""

    source: SyncFolder
    state: FolderState
    removed: list[str]

    @property
    def documents(self) -> list[str]:
        """The docids of documents that are new or changed."""
        return list(self.state.documents)


def sync(
    store: Store,
    folders: Sequence[Path],
    *,
    notes: ReadNotes | None = None,
    dry_run: bool = False,
    on_changes: Callable[[SyncReport], None] = lambda report: None,
    cluster: Cluster | None = None,
    **keywords: Any,
) -> SyncReport:
    """Bring an index in step with folders. `on_changes` is called with what is about to happen; the keywords are those of `Options`."""
    started, options, notes = time.monotonic(), Options(**keywords), notes or ReadNotes(skip=True)
    with store.writing(), on_interrupt(f"{store.folder} is unchanged; run the same command again"), learning(store):
        parent = store.ready(training_blobs if cluster is None else model_blobs)
        options.check_probes(parent)
        lookup = lookup_of(store, parent, cluster)
        changes = [_changes(source, notes) for source in sources_of(store, parent, folders, lookup)]
        report = _report(store, parent, changes)
        if clash := lookup.live(report.added):
            raise DataError(f"the docid {min(clash)!r} of a new file is another document's; rename one of them", path=store.folder)
        on_changes(report)
        if dry_run:
            return report
        if report.added or report.updated or report.deleted:
            report = replace(_commit(store, parent, changes, report, options, cluster), seconds=time.monotonic() - started)
        for change in changes:
            change.state.save()
        return report


def folder_list(folders: str | Path | Sequence[str | Path]) -> list[Path]:
    """One folder or several as a list."""
    return [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]


def sources_of(store: Store, manifest: Manifest, folders: Sequence[Path], lookup: Lookup) -> list[SyncFolder]:
    """The folders as sources of an index, known ones with the prefix they have."""
    resolved = [folder.expanduser().resolve() for folder in folders]
    if twice := [folder for folder in resolved if resolved.count(folder) > 1]:
        raise UsageError(f"the folder {twice[0]} is given twice")
    for folder in resolved:
        if inner := [other for other in resolved if other != folder and folder in other.parents]:
            raise UsageError(f"the folder {inner[0]} lies inside {folder}: its files would be indexed twice")
    arrivals = [placed.arrival for placed in manifest.arrivals()]
    prefixes = {arrival.source: arrival.prefix for arrival in arrivals if arrival.source is not None}
    live = _live_by_source(store, manifest, {str(folder) for folder in resolved})
    sources = []
    for folder in resolved:
        if str(folder) not in prefixes:
            if folder.is_dir() and (followed := manifest.follows(folder)) is not None:
                where = f"lies inside {followed.source}" if folder.is_relative_to(followed.source or "") else f"contains {followed.source}"
                raise UsageError(f"the folder {folder} {where}, which the index follows already: its files would be indexed twice")
            taken = TakenNames({prefix.rstrip("/") for prefix in prefixes.values()}, lookup)
            prefixes[str(folder)] = f"{unique_name(folder.name or 'folder', taken)}/"
        sources.append(SyncFolder(folder, prefixes[str(folder)], live.get(str(folder), {})))
    return sources


@dataclass(frozen=True)
class TakenNames:
    """What docids begin with already: the prefixes of other folders, and the first part of any docid that is a path."""

    prefixes: set[str]
    lookup: Lookup

    def __contains__(self, name: object) -> bool:
        return name in self.prefixes or self.lookup.has_folder(str(name))


def _live_by_source(store: Store, manifest: Manifest, folders: set[str]) -> dict[str, dict[str, LiveDocument]]:
    """Number and content hash of the documents of some folders that can be retrieved, by folder and docid."""
    live: dict[str, dict[str, LiveDocument]] = {}
    deleted, checked, hashed = set(manifest.tombstones), "", list[tuple[str | None, str]]()
    for arrival, entry, positions, numbers in manifest.arrivals():
        if arrival.source in folders:
            if entry.ids != checked:  # thousands of small corpora may have been merged into one
                store.blobs.check(entry.ids, manifest.sizes[entry.ids])
                checked, hashed = entry.ids, store.hashed_docids(entry)
            for (docid, content), number in zip(hashed[positions.start : positions.stop], numbers, strict=True):
                if docid is not None and number not in deleted:
                    live.setdefault(arrival.source, {})[docid] = (number, content)
    return live


def _changes(source: SyncFolder, notes: ReadNotes) -> FolderChanges:
    indexed = {docid: content for docid, (_, content) in source.live.items()}
    state = scan(source.folder, lambda path: source.prefix + path, indexed, content_hash, notes)
    return FolderChanges(source, state, sorted(source.live.keys() - state.present))


def _report(store: Store, parent: Manifest, changes: Sequence[FolderChanges]) -> SyncReport:
    new = [docid for change in changes for docid in change.documents if docid not in change.source.live]
    updated = [docid for change in changes for docid in change.documents if docid in change.source.live]
    removed = [docid for change in changes for docid in change.removed]
    unchanged = sum(len(change.source.live) for change in changes) - len(updated) - len(removed)
    taught = count_taught(
        store, parent, [change.source.live[docid][0] for change in changes for docid in change.documents if docid in change.source.live]
    )
    return SyncReport(parent.number, new, updated, removed, unchanged, corrections_lost=taught)


def _commit(
    store: Store, parent: Manifest, changes: Sequence[FolderChanges], report: SyncReport, options: Options, cluster: Cluster | None
) -> SyncReport:
    """Learn what is new or changed, folder by folder, hide what is gone or replaced, and commit one generation."""
    numbers = {docid: number for change in changes for docid, (number, _) in change.source.live.items()}
    hidden = {numbers[docid] for docid in (*report.updated, *report.deleted)}
    manifest, fields = parent, dict[str, Any]()
    if report.added or report.updated:
        method = load_seeded(store, parent, options, cluster=cluster)
        for change in (change for change in changes if change.documents):
            folder = change.source.folder
            corpus = Corpus(list(change.state.documents.values()), name=folder.name or "folder", source=str(folder))
            name = unique_name(corpus.name, manifest.names)
            method.model_.rows.delete([docid for docid in change.documents if docid in change.source.live])
            learning = replace(options, prefix=change.source.prefix)
            fields, _ = learn_corpus(store, manifest, corpus, method, learning, name=name, since=parent.number + 1)
            manifest = replace(manifest, **fields)
        method.model_.rows.delete([docid for change in changes for docid in change.removed])
    counts = {"added": len(report.added), "updated": len(report.updated), "deleted": len(report.deleted), "fast": options.fast}
    event = counts | {"folders": [str(change.source.folder) for change in changes]}
    tombstones = tuple(sorted({*parent.tombstones, *hidden}))
    manifest = parent.next("sync", tombstones=tombstones, event=event, **fields)
    if fields:
        after = evaluated(manifest, method, cluster)
        report = replace(report, drift=check_drift(store, parent, after, options, what="what is new in the folders", cluster=cluster))
    return replace(report, generation=store.commit(manifest).number)
