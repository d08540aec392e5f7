"""Purge: the bytes of a document leave every generation. What prompts or the encoder absorbed of it is not unlearned.

1. Blobs that contain something of the document are rewritten without it: its row is zero, its docid and text are removed, its
   position stays, so that no other document moves.
2. A new generation names the new blobs and lists the old ones as to be erased; it becomes current. From here on the purge
   will be completed, by this process or by the next writer.
3. Older manifests are rewritten to name the new blobs, then the old blobs are removed.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from promptdsi.errors import DataError
from promptdsi.index.delete import deleted_docids
from promptdsi.index.entry import Arrival, Entry
from promptdsi.index.file_checks import PARTS
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import NothingToPurge
from promptdsi.index.store import Store
from promptdsi.wording import suggest

CorpusKey = tuple[int, str, int]  # the generation a corpus arrived in, its name, as a sync may bring several at once, and the part
SHARED = ("rows", "ids", "words", "documents")  # lists of queries are equal only where both are empty
Positions = dict[CorpusKey, set[int]]  # positions in a corpus, or a part of it, to erase


def purge(store: Store, docids: Sequence[str] | None = None) -> Manifest:
    """Erase the named documents, every version of them, or all deleted ones.

    An interrupted purge is completed first; without docids nothing else is then done, and docids it had erased are accepted.
    """
    with store.writing():
        current = store.manifest()
        was_pending = store.purge_pending(current)
        parent = store.finish(current)
        if was_pending and docids is None:
            return parent
        store.clean()
        history = store.history()
        store.check(history[-1], {entry.ids for manifest in history for entry in manifest.corpora})
        positions = _deleted(store, history) if docids is None else _named(store, history, docids, must_exist=not was_pending)
        if not positions:
            if was_pending:
                return parent
            raise NothingToPurge(f"{store.folder}: no deleted document is left to purge")
        _check_shared(store, history, positions)
        counts = _counts(store, history, positions)
        renamed = _rewrite_blobs(store, history, positions)
        renamed |= _rewrite_statistics(store, history, renamed)
        manifest = store.hide_erased(parent.renamed(renamed)).next("purge", event=counts, erase=renamed)
        if in_use := manifest.blobs() & renamed.keys():
            raise AssertionError(f"purge would remove {min(in_use)}, which is in use")
        store.commit(manifest)
        return store.finish(store.manifest())


def _named(store: Store, history: Sequence[Manifest], docids: Iterable[str], *, must_exist: bool = True) -> Positions:
    """Where the named documents are, in any generation: one that was rolled back is still on disk."""
    missing, positions = set(docids), {}
    named = frozenset(missing)
    for entry in _corpora(history):
        matches = {position: docid for position, docid in enumerate(store.docids(entry)) if docid in named}
        missing -= {docid for docid in matches.values() if docid is not None}
        if matches:
            positions[_key(entry)] = set(matches)
    if must_exist and missing:
        docids = {docid for entry in _corpora(history) for docid in store.docids(entry) if docid is not None}
        raise DataError(f"holds no document {min(missing)!r}{suggest(min(missing), docids)}", path=store.folder)
    return positions


def _deleted(store: Store, history: Sequence[Manifest]) -> Positions:
    """Where the deleted documents are, in any generation, and the versions that were replaced by a live one."""
    current = history[-1]
    deleted: Positions = {}
    for entry, hidden in zip(current.corpora, current.deleted_positions(), strict=True):
        docids = store.docids(entry) if hidden else []
        deleted[_key(entry)] = {position for position in hidden if docids[position] is not None}
    positions, places = _named(store, history, deleted_docids(store, current)), _places(history)
    for entry in current.corpora:
        for position in deleted[_key(entry)]:
            arrival, offset = entry.place_of(position)
            for key, start in places[_arrival_key(arrival)]:
                positions.setdefault(key, set()).add(start + offset)
    return positions


def _places(history: Sequence[Manifest]) -> dict[CorpusKey, list[tuple[CorpusKey, int]]]:
    """The corpora that hold what arrived together, and where it begins in each: small ones may have been merged since."""
    places: dict[CorpusKey, list[tuple[CorpusKey, int]]] = {}
    for entry in _corpora(history):
        starts = accumulate((arrival.documents for arrival in entry.arrivals), initial=0)
        for arrival, start in zip(entry.arrivals, starts, strict=False):
            places.setdefault(_arrival_key(arrival), []).append((_key(entry), start))
    return places


def _counts(store: Store, history: Sequence[Manifest], positions: Positions) -> dict[str, int]:
    """Documents that are erased; their versions, where there are more; and versions of documents of which a newer one stays."""
    erased = [(entry, position) for entry in _corpora(history) for position in positions.get(_key(entry), ())]
    # A corpus and the one that it was merged into hold the same version.
    versions_erased = {(_arrival_key(entry.arrival_of(position)), store.docids(entry)[position]) for entry, position in erased}
    docids = Counter(docid for _, docid in versions_erased)
    current, stay = history[-1], set[str | None]()
    for entry, hidden in zip(current.corpora, current.deleted_positions(), strict=True):
        left = set(range(entry.count)).difference(hidden, positions.get(_key(entry), ()))
        stay |= docids.keys() & {store.docids(entry)[position] for position in left}
    counts = {"documents": len(docids.keys() - stay)}
    versions, replaced = (sum(docids[docid] for docid in chosen) for chosen in (docids.keys() - stay, stay))
    counts |= {"versions": versions} if versions > counts["documents"] else {}
    return counts | ({"replaced": replaced} if replaced else {})


def _corpora(history: Iterable[Manifest]) -> Iterable[Entry]:
    """Each corpus once, of all generations."""
    return {_key(entry): entry for manifest in history for entry in manifest.corpora}.values()


def _versions(history: Iterable[Manifest]) -> dict[Entry, Manifest]:
    """Each corpus once with every blob it ever had, and a generation that has it so: training replaces blobs."""
    return {entry: manifest for manifest in history for entry in manifest.corpora}


def _key(entry: Entry) -> CorpusKey:
    return entry.since, entry.name, entry.part


def _arrival_key(arrival: Arrival) -> CorpusKey:
    return arrival.since, arrival.name, arrival.part


def _check_shared(store: Store, history: Sequence[Manifest], positions: Positions) -> None:
    """Refuse to erase from a blob what another corpus needs: two that a sync brought at once share it where their contents are equal."""
    users: dict[str, tuple[Entry, int, set[int]]] = {}  # the first of each blob; all others must erase the same
    for entry in _versions(history):
        for part in SHARED:
            for name, start, inside in _erased_of(entry, part, positions):
                other, other_start, other_inside = users.setdefault(name, (entry, start, inside))
                if differing := inside ^ other_inside:
                    place = min(differing)
                    first, second = store.docids(other)[other_start + place], store.docids(entry)[start + place]
                    raise DataError(f"{first!r} and {second!r} arrived together with the same text: purge both", path=store.folder)


def _rewrite_blobs(store: Store, history: Iterable[Manifest], positions: Positions) -> dict[str, str]:
    """Rewrite every blob of any generation that contains something of the documents: old name → new name.

    Each is checked before: a damaged blob must not get a correct checksum.
    """
    renamed: dict[str, str] = {}
    erased: dict[tuple[int, str], set[str | None]] = {}  # docids by corpus: its first part has the probes of all
    for entry in _corpora(history):
        docids = store.docids(entry) if _key(entry) in positions else []
        erased.setdefault(_key(entry)[:2], set()).update(docids[position] for position in positions.get(_key(entry), ()))
    for entry, manifest in _versions(history).items():
        for part in PARTS if _key(entry) in positions else ("probes",) if erased[_key(entry)[:2]] else ():
            for name, _, inside in _erased_of(entry, part, positions):
                if name not in renamed and (inside or part not in SHARED):
                    store.blobs.check(name, manifest.sizes[name])
                    renamed[name] = _rewritten(store, entry, part, name, inside, erased[_key(entry)[:2]])
    return {old: new for old, new in renamed.items() if old != new}


def _rewrite_statistics(store: Store, history: Iterable[Manifest], renamed: dict[str, str]) -> dict[str, str]:
    """Word statistics of any generation without the words that no remaining document has: old name → new name."""
    sizes = {entry.words: manifest.sizes[entry.words] for manifest in history for entry in manifest.corpora if entry.words}
    for words, size in sizes.items():
        if words not in renamed:  # those that were rewritten were checked
            store.blobs.check(words, size)
    terms = [store.blobs.words(name).terms for name in {renamed.get(name, name) for name in sizes}]
    rewritten: dict[str, str] = {}
    for manifest in history:
        if (name := manifest.statistics) and name not in rewritten:
            store.blobs.check(name, manifest.sizes[name])
            left = store.blobs.statistics(name).only(terms)
            rewritten[name] = store.blobs.put_statistics(left)
    return {old: new for old, new in rewritten.items() if old != new}


def _rewritten(store: Store, entry: Entry, part: str, name: str, positions: set[int], erased: set[str | None]) -> str:
    """A blob without the documents at some positions in it, whose docids, in all parts of the corpus, are `erased`: its name."""
    blobs, since = store.blobs, entry.since
    ids = store.ids(entry.ids)
    if part in ("rows", "words"):
        starts = [0, *accumulate(ids.passages)]
        numbers = [row for position in sorted(positions) for row in range(starts[position], starts[position + 1])]
        if part == "words":
            words = blobs.words(name)
            _check_passages(entry, len(words.lengths), starts[-1], blobs.folder / name)
            return blobs.put_words(words.without(numbers), since=since, part=entry.part)
        rows = blobs.rows(name).rows.copy()
        _check_passages(entry, len(rows), starts[-1], blobs.folder / name)
        rows[numbers] = 0.0
        return blobs.put_rows(rows, since=since, part=entry.part)
    if part == "ids":
        return blobs.put_json(ids.without(positions)._asdict())
    if part == "documents":
        with contextlib.closing(store.document_file(name, range(entry.count))) as opened:
            remaining = [(position, document) for position, document in opened if position not in positions]
            return blobs.put_documents(remaining, since=opened.since())  # an entry that small corpora were merged into came later
    queries = blobs.list(name, part)
    if part == "probes":
        return blobs.put_list([query for query in queries if not erased.intersection(query["docids"])], since=since)
    return blobs.put_list([query for query in queries if query["docid"] not in erased], since=since)


def _erased_of(entry: Entry, part: str, positions: Positions) -> list[tuple[str, int, set[int]]]:
    """For each blob of a part: its name, where it begins in the corpus, and which of its positions to erase."""
    inside = positions.get(_key(entry), set())
    if part != "documents":
        return [(name, 0, inside) for name in entry.files(part)]
    ordered, parts = sorted(inside), []
    for name, covered in entry.document_files:
        chosen = ordered[bisect.bisect_left(ordered, covered.start) : bisect.bisect_left(ordered, covered.stop)]
        parts.append((name, covered.start, {position - covered.start for position in chosen}))
    return parts


def _check_passages(entry: Entry, count: int, expected: int, path: Path) -> None:
    if count != expected:
        raise DataError(f"holds {count:,} passages, and the corpus {entry.name} has {expected:,}", path=path)
