"""Verify: every file against its checksum, and every generation for consistency."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from promptdsi.engine.quantized import quantize
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.index.deltas import check_whole
from promptdsi.index.encoder_checks import check_encoder
from promptdsi.index.entry import Entry
from promptdsi.index.eval_records import read_record
from promptdsi.index.file_checks import HASH, NAME
from promptdsi.index.lock import is_held
from promptdsi.index.manifest import INCONSISTENT, Manifest, PrunedGeneration
from promptdsi.index.results import Verification
from promptdsi.index.row_files import stored_codes
from promptdsi.index.store import FOLDERS, TAGS_FILE, Store
from promptdsi.index.tags import read_tags
from promptdsi.model.tokenizer_checks import check_tokenizer
from promptdsi.progress import Progress, silent

UNREADABLE: tuple[type[Exception], ...] = (DataError, *INCONSISTENT)
NAMED = 20  # of missing manifests


def verify(store: Store, *, current: int | None = None, progress: Progress = silent) -> Verification:
    """Check everything; problems are listed, not raised. Nothing is written. `current` is for an index that has no CURRENT yet."""
    committed, current = current is None, store.current() if current is None else current
    problems: list[str] = []
    present = {number: True for number in store.numbers() if number <= current}  # in order
    missing = itertools.islice((number for number in range(1, current) if number not in present), NAMED)
    problems += [f"{store.manifest_path(number)}: is missing; restore it from a copy" for number in missing]
    if len(present) + NAMED < current:  # CURRENT may say anything
        problems.append(f"{store.folder}: {current - len(present):,} of {current:,} generations are missing")
    generations: dict[int, Manifest | PrunedGeneration] = {}
    known_sizes: dict[str, int] = {}
    for number in present:
        try:
            state = store.manifests.follow(number, generations, known_sizes)
            generations[number] = check_whole(state, store.manifest_path(number)) if isinstance(state, Manifest) else state
        except PromptDSIError as error:
            problems.append(str(error))
    history = [state for state in generations.values() if isinstance(state, Manifest)]
    sizes = {name: manifest.sizes[name] for manifest in history for name in manifest.blobs()}
    intact = set()
    with progress("checking blobs", total=len(sizes), unit="blobs") as advance:
        for name, size in sorted(sizes.items()):
            try:
                store.blobs.check(name, size)
                intact.add(name)
            except DataError as error:
                problems.append(str(error))
            advance(1)
    docids = functools.cache(lambda name: store.outline(name).docids)  # of every generation: most have the same corpora
    for manifest in history:
        if manifest.blobs() <= intact:
            problems += [f"generation {manifest.number}: {problem}" for problem in _collected(_generation(docids, manifest))]
    for entry, width in {entry: manifest.config["width"] for manifest in history for entry in manifest.corpora}.items():
        if intact.issuperset(entry.blobs()):
            problems += [f"corpus {entry.name}: {problem}" for problem in _collected(_corpus(store, entry, width))]
    problems += [problem for manifest in _distinct(history, intact) for problem in _encoder(store, manifest)]
    problems += _collected(_weights(store, history, intact)) + _collected(_records(store, present))
    problems += _collected(_other_files(store, history)) if committed else []
    return Verification(len(history), len(sizes), sum(sizes.values()), list(dict.fromkeys(problems)))


def _collected(problems: Iterator[str]) -> list[str]:
    """The problems that a check lists; a file that cannot be read at all is one more, and the check ends there."""
    listed = []
    try:
        for problem in problems:
            listed.append(problem)  # those before an error count
    except UNREADABLE as error:
        listed.append(str(error) or type(error).__name__)
    return listed


def _generation(docids_of: Callable[[str], list[str | None]], manifest: Manifest) -> Iterator[str]:
    deleted, number = set(manifest.tombstones), 0
    live: Counter[str] = Counter()
    for entry in manifest.corpora:
        for docid in docids_of(entry.ids):
            if docid is None and number not in deleted:
                yield f"document {number} has no docid and is not deleted"
            if docid is not None and number not in deleted:
                live[docid] += 1
            number += 1
    if twice := [docid for docid, count in live.items() if count > 1]:
        yield f"{len(twice)} docids stand for more than one document, {twice[0]!r} first"
    if missing := deleted - set(range(number)):
        yield f"documents are deleted that do not exist, {min(missing)} first"
    if number != (count := sum(entry.count for entry in manifest.corpora)):
        yield f"{number} documents, but {count} are said to be there"
    if bool(manifest.statistics) != all(entry.words for entry in manifest.corpora):
        yield "some corpora have words and others have none"


def _distinct(history: list[Manifest], intact: set[str]) -> list[Manifest]:
    """One generation of each encoder, tokenizer and word statistics: most generations have the same."""
    usable = [manifest for manifest in history if intact.issuperset(manifest.blobs())]
    keys = ((manifest.encoder, manifest.tokenizer, manifest.statistics, repr((manifest.config, manifest.params))) for manifest in usable)
    return list(dict(zip(keys, usable, strict=True)).values())


def _encoder(store: Store, manifest: Manifest) -> Iterator[str]:
    """What a search would refuse."""
    checks: list[Callable[[], object]] = [
        lambda: check_encoder(manifest, store.blobs),
        lambda: check_tokenizer(store.blobs.text(manifest.tokenizer), manifest.config["vocabulary"]),
        lambda: manifest.statistics and store.blobs.statistics(manifest.statistics),
    ]
    for check in checks:
        try:
            check()
        except UNREADABLE as error:
            yield f"generation {manifest.number}: {error}"


def _corpus(store: Store, entry: Entry, width: int) -> Iterator[str]:
    arrays = store.blobs.arrays(entry.rows)
    rows, ids = arrays.get("rows"), store.ids(entry.ids)
    purged = [docid is None for docid, count in zip(ids.docids, ids.passages, strict=True) for _ in range(count)]  # by row
    if rows is None or rows.shape != (entry.row_count, width) or rows.dtype != np.float32:
        yield f"rows are not {entry.row_count} × {width} numbers"
    elif not np.isfinite(rows).all():
        yield "rows hold NaN or Inf"
    elif len(purged) != len(rows):
        yield f"{len(purged)} passages for {len(rows)} rows"
    elif rows[purged].any():
        yield "a purged document's row is not empty"
    elif not _codes_match(arrays, rows):
        yield "the codes are not those of the rows"
    if len(ids.docids) != entry.count or len(ids.marks) != HASH * entry.count:
        yield f"{len(ids.docids)} docids for {entry.count} documents"
    if entry.words:
        yield from _words(store, entry, purged)
    if entry.documents is not None:
        stored = {position: document.docid for position, document in store.documents(entry)}
        if stored != {position: docid for position, docid in enumerate(ids.docids) if docid is not None}:
            yield "the stored documents are not those of the rows"


def _words(store: Store, entry: Entry, purged: list[bool]) -> Iterator[str]:
    assert entry.words is not None
    try:
        postings = store.blobs.words(entry.words)
    except (KeyError, ValueError) as error:
        yield str(error)
        return
    if not len(postings.lengths) == entry.row_count == len(purged):
        yield f"words of {len(postings.lengths)} passages for {entry.row_count} rows"
    elif postings.lengths[purged].any() or np.isin(postings.passages, np.flatnonzero(purged)).any():
        yield "words of a purged document are still there"


def _codes_match(arrays: dict[str, Any], rows: Any) -> bool:
    """Whether stored codes, if there are any, are those of the rows; lengths to rounding, since machines sum in different orders."""
    try:
        stored = stored_codes(arrays)
    except (KeyError, ValueError):
        return False
    if stored is None:
        return True
    codes = quantize(rows)
    exact = all(np.array_equal(getattr(stored, name), getattr(codes, name)) for name in ("panels", "shift", "scale"))
    return exact and all(np.allclose(getattr(stored, name), getattr(codes, name), rtol=1e-6, atol=0) for name in ("error", "length"))


def _weights(store: Store, history: list[Manifest], intact: set[str]) -> Iterator[str]:
    tensors: dict[str, set[str]] = {}
    for name in sorted({name for manifest in history for name in (manifest.encoder, *manifest.prompts.values())} & intact):
        for tensor_name, tensor in store.blobs.arrays(name).items():
            if not np.isfinite(tensor).all():
                yield f"blob {name}: {tensor_name} holds NaN or Inf"
            tensors.setdefault(name, set()).add(tensor_name)
    for manifest in history:
        if missing := [tensor for tensor, blob in manifest.prompts.items() if blob in intact and tensor not in tensors[blob]]:
            yield f"generation {manifest.number}: the prompt {missing[0]} is not in its blob"


def _records(store: Store, present: Collection[int]) -> Iterator[str]:
    for path in sorted((store.folder / "records").glob("*.json")):
        try:
            read_record(path)
        except DataError as error:
            yield str(error)
    for tag, number in read_tags(store).items():
        if number not in present or store.manifests.is_pruned(number):
            yield f"{store.folder / TAGS_FILE}: the tag {tag} names generation {number}, which is not there"


def _other_files(store: Store, history: list[Manifest]) -> Iterator[str]:
    if history and store.purge_pending(history[-1]):
        yield f"a purge was interrupted; `promptdsi purge {store.folder}`, or any other write, completes it"
        return
    if history and store.prune_pending(history[-1]):
        yield "a prune was interrupted; any other write completes it"
        return
    for path in store.leftovers() if not is_held(store.folder) else ():  # a running writer has files without a name yet
        yield f"{path} belongs to no generation; the next write removes it"
    expected = {*FOLDERS, "CURRENT", "lock", TAGS_FILE}
    inside = [path for folder in FOLDERS if (store.folder / folder).is_dir() for path in (store.folder / folder).iterdir()]
    ours = re.compile(rf"{NAME.pattern}|\d{{6,}}\.json|\d{{6,}}-[0-9a-f]{{16}}\.json")
    for path in sorted([*(path for path in store.folder.iterdir() if path.name not in expected), *inside]):
        if not path.name.startswith(".") and not (path.parent != store.folder and ours.fullmatch(path.name)):
            yield f"{path} is no part of an index"
