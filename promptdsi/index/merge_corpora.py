"""Merging small corpora: their rows, ids and words, and mostly their documents, move into one file of each kind, bit for bit.

A thousand additions of a document each leave four thousand files, and opening them takes longer than reading them. Which documents arrived
together, when and from where, stays in the manifest (`Entry.merged`). The files of the small corpora stay until the generations that
need them are pruned.

`prune --merge` merges all that are small. `add`, `sync` and `teach` merge those of a size once enough have gathered: after their commit, in
a generation of its own, so that the change itself touches no old file. `add` leaves documents in their files, so that it opens none of
the past: the merged corpus then has several, which the next `prune --merge` makes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from promptdsi.engine.postings import Postings
from promptdsi.index.blobs import Ids
from promptdsi.index.entry import Entry
from promptdsi.index.manifest import Manifest
from promptdsi.index.store import Store
from promptdsi.progress import Progress, silent

MOST_MERGED = 500_000  # rows of a merged corpus
MOST_ARRIVALS = 20_000  # in a merged corpus: each is listed in the manifest
FAN = 32  # corpora of a size are merged by themselves when there are so many, those merged from them when so many of these are


def merge_gathered(store: Store, *, documents: bool = True) -> int:
    """Merge the small corpora of which enough have gathered, and commit that as a generation: how many were merged.

    Without `documents` theirs stay in the files they are in, which are not opened.
    """
    if not gathered(store.manifest()):
        return 0
    with store.writing():
        parent = store.ready(lambda manifest: set())
        runs = gathered(parent)
        if not runs:
            return 0
        corpora = merge_corpora(store, parent, runs, since=parent.number + 1, documents=documents)
        merged = sum(map(len, runs))
        # The event of `prune --merge`, which does no more to generations that stay: formats and the log know it.
        store.commit(parent.next("prune", event={"generations": 0, "merged": merged}, corpora=corpora))
        return merged


def gathered(manifest: Manifest) -> list[range]:
    """The numbers of small corpora that should be merged: those of a size, and what lies between them, once there are enough.

    Sizes are below `FAN` rows, and from there to `FAN` times as many. So a document is moved about twice, and a thousand additions of
    one document leave some sixty corpora. Corpora that cannot be merged divide the others into runs; each run is merged by itself.
    """
    for least in (1, FAN):  # rows
        runs = []
        for run in mergeable(manifest):
            members = [number for number in run if least <= manifest.corpora[number].row_count < FAN * least]
            if len(members) > 1:
                runs.append((len(members), range(members[0], members[-1] + 1)))
        if sum(count for count, _ in runs) >= FAN:
            return [run for _, run in runs]
    return []


def merge_corpora(
    store: Store, manifest: Manifest, runs: Sequence[range], *, since: int, documents: bool = True, progress: Progress = silent
) -> tuple[Entry, ...]:
    """The corpora of a generation with each of these runs merged into one; the new blobs are written."""
    parts = ("rows", "ids", "words", *(["documents"] if documents else []))
    entries, merged = list(manifest.corpora), sum(map(len, runs))
    with progress("merging corpora", total=merged, unit="corpora") as advance:
        for run in reversed(runs):  # from the end: the numbers of those before stay
            small = entries[run.start : run.stop]
            store.check(manifest, {name for entry in small for part in parts for name in entry.files(part)})
            with manifest.as_data_error(store.folder):
                entry = _merged(store, small, since=since)
                stored = _merged_documents(store, small, since=since) if documents else _document_files(small)
            entries[run.start : run.stop] = [replace(entry, documents=stored)]
            advance(len(small))
    return tuple(entries)


def mergeable(manifest: Manifest) -> list[range]:
    """The numbers of small corpora that can be merged, except D0 and corpora still untrained or with stored queries or probes.

    One alone is among them where its documents are in several files, whatever its size.
    """
    corpora = manifest.corpora
    single = (part.start for part in manifest.parts()[1:] if len(part) == 1)  # parts of a large corpus stay apart
    settled = (number for number in single if corpora[number].is_settled)
    runs: list[range] = []
    rows = arrivals = 0
    for number in (number for number in settled if corpora[number].is_small or isinstance(corpora[number].documents, tuple)):
        entry, last = corpora[number], corpora[number - 1]
        rows, arrivals = rows + entry.row_count, arrivals + len(entry.arrivals)
        similar = entry.is_small and last.is_small and (entry.documents is None) == (last.documents is None)
        if runs and runs[-1].stop == number and similar and rows <= MOST_MERGED and arrivals <= MOST_ARRIVALS:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
            rows, arrivals = entry.row_count, len(entry.arrivals)
    return [run for run in runs if len(run) > 1 or isinstance(corpora[run.start].documents, tuple)]


def _document_files(entries: Sequence[Entry]) -> tuple[tuple[str, int], ...] | None:
    """The files of all their documents, each with the position that it begins at when they are one corpus."""
    placed = [(name, first + covered.start) for entry, first in _placed(entries) for name, covered in entry.document_files]
    return tuple(placed) or None


def _merged_documents(store: Store, entries: Sequence[Entry], *, since: int) -> str | None:
    """One file of all their documents."""
    if entries[0].documents is None:
        return None
    numbered = ((first + position, document) for entry, first in _placed(entries) for position, document in store.documents(entry))
    return store.blobs.put_documents(numbered, since=since)


def _placed(entries: Sequence[Entry]) -> Iterable[tuple[Entry, int]]:
    """Corpora, each with the position of its first document when they are one."""
    return zip(entries, accumulate((entry.count for entry in entries), initial=0), strict=False)


def _merged(store: Store, entries: Sequence[Entry], *, since: int) -> Entry:
    """These corpora as one, without its documents."""
    blobs, ids = store.blobs, Ids(since, [], "", {})
    for entry in entries:
        part, first = store.ids(entry.ids), len(ids.docids)
        if len(part.docids) != entry.count:
            raise ValueError(f"{len(part.docids)} docids for the {entry.count} documents of {entry.name}")
        boundaries = {str(first + int(position)): offsets for position, offsets in part.boundaries.items()}
        ids = Ids(since, ids.docids + part.docids, ids.marks + part.marks, ids.boundaries | boundaries)
    rows = np.concatenate([blobs.arrays(entry.rows)["rows"] for entry in entries])
    words = [blobs.words(entry.words) for entry in entries if entry.words]
    return Entry(
        name=entries[0].arrivals[0].name,
        since=since,
        count=len(ids.docids),
        rows=blobs.put_rows(rows, since=since),
        ids=blobs.put_json(ids._asdict()),
        passages=len(rows) if len(rows) > len(ids.docids) else 0,
        words=blobs.put_words(Postings.concat(words), since=since) if words else None,
        merged=tuple(arrival for entry in entries for arrival in entry.arrivals),
    )
