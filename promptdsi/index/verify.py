"""Verify: every file against its checksum, and every generation against itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from promptdsi.engine.quantized import quantize
from promptdsi.errors import DataError
from promptdsi.index.blobs import NAME
from promptdsi.index.documents import Documents
from promptdsi.index.ids import MARK
from promptdsi.index.lock import is_held
from promptdsi.index.manifest import Entry, Manifest, unsealed
from promptdsi.index.purge import pending
from promptdsi.index.results import Verification
from promptdsi.index.rows import codes_beside
from promptdsi.index.store import FOLDERS, Store
from promptdsi.progress import Progress, silent


def verify(store: Store, *, progress: Progress = silent) -> Verification:
    """Look at everything; what is wrong is listed, not raised. Nothing is written."""
    current = store.current()
    problems: list[str] = []
    history = []
    for number in range(1, current + 1):
        try:
            history.append(store.manifest(number))
        except DataError as error:
            problems.append(str(error))
    sizes = {name: size for manifest in history for name, size in manifest.sizes.items()}
    sound = set()
    with progress("checking blobs", total=len(sizes), unit="blobs") as advance:
        for name, size in sorted(sizes.items()):
            try:
                store.blobs.check(name, size)
                sound.add(name)
            except DataError as error:
                problems.append(str(error))
            advance(1)
    for manifest in history:
        if manifest.blobs() <= sound:
            problems += [f"generation {manifest.number}: {problem}" for problem in _generation(store, manifest)]
    for entry, width in {entry: manifest.config["width"] for manifest in history for entry in manifest.corpora}.items():
        if sound.issuperset(entry.blobs()):
            problems += [f"corpus {entry.name}: {problem}" for problem in _corpus(store, entry, width)]
    problems += list(_weights(store, history, sound)) + list(_others(store, history))
    return Verification(len(history), len(sizes), sum(sizes.values()), list(dict.fromkeys(problems)))


def _generation(store: Store, manifest: Manifest) -> Iterator[str]:
    gone, row = set(manifest.tombstones), 0
    live: Counter[str] = Counter()
    for entry in manifest.corpora:
        for docid in store.ids(entry.ids).docids:
            if docid is None and row not in gone:
                yield f"row {row} has no docid and is not deleted"
            if docid is not None and row not in gone:
                live[docid] += 1
            row += 1
    if twice := [docid for docid, count in live.items() if count > 1]:
        yield f"{len(twice)} docids stand for more than one document, {twice[0]!r} first"
    if gone - set(range(row)):
        yield f"rows are deleted that do not exist, {min(gone - set(range(row)))} first"
    if row != manifest.rows:
        yield f"{row} rows, but {manifest.rows} are said to be there"


def _corpus(store: Store, entry: Entry, width: int) -> Iterator[str]:
    held = store.blobs.arrays(entry.rows)
    rows, ids = held.get("rows"), store.ids(entry.ids)
    if rows is None or rows.shape != (entry.count, width) or rows.dtype != np.float32:
        yield f"rows are not {entry.count} × {width} numbers"
    elif not np.isfinite(rows).all():
        yield "rows hold NaN or Inf"
    elif rows[[place for place, docid in enumerate(ids.docids) if docid is None]].any():
        yield "a purged document's row is not empty"
    elif not _coded(held, rows):
        yield "the codes are not those of the rows"
    if len(ids.docids) != entry.count or len(ids.marks) != MARK * entry.count:
        yield f"{len(ids.docids)} docids for {entry.count} rows"
    if entry.documents is not None:
        opened = Documents(store.blobs.path(entry.documents))
        stored = {place: document.docid for place, document in opened}
        opened.close()
        if stored != {place: docid for place, docid in enumerate(ids.docids) if docid is not None}:
            yield "the stored documents are not those of the rows"


def _coded(held: dict[str, Any], rows: Any) -> bool:
    """Whether stored codes, if there are any, are those of the rows; lengths were summed in the order of the machine that wrote them."""
    try:
        stored = codes_beside(held)
    except (KeyError, ValueError):
        return False
    if stored is None:
        return True
    codes = quantize(rows)
    whole = all(np.array_equal(getattr(stored, name), getattr(codes, name)) for name in ("panels", "shift", "scale"))
    return whole and all(
        np.allclose(one, own, rtol=1e-6, atol=0) for one, own in ((stored.error, codes.error), (stored.length, codes.length))
    )


def _weights(store: Store, history: list[Manifest], sound: set[str]) -> Iterator[str]:
    held: dict[str, set[str]] = {}
    for name in sorted({name for manifest in history for name in (manifest.encoder, *manifest.prompts.values())} & sound):
        for tensor_name, tensor in store.blobs.arrays(name).items():
            if not np.isfinite(tensor).all():
                yield f"blob {name}: {tensor_name} holds NaN or Inf"
            held.setdefault(name, set()).add(tensor_name)
    for manifest in history:
        if missing := [tensor for tensor, blob in manifest.prompts.items() if blob in sound and tensor not in held[blob]]:
            yield f"generation {manifest.number}: the prompt {missing[0]} is not in its blob"


def _others(store: Store, history: list[Manifest]) -> Iterator[str]:
    for path in sorted((store.folder / "records").glob("*.json")):
        try:
            unsealed(path)
        except DataError as error:
            yield str(error)
    if history and pending(store, history[-1]):
        yield f"a purge was cut off before it was done; `promptdsi purge {store.folder}`, or any other write, completes it"
        return
    for path in store.leftovers() if not is_held(store.folder) else ():  # a writer at work has files that are not named yet
        yield f"{path} belongs to no generation; the next write removes it"
    known = {*FOLDERS, "CURRENT", "lock"}
    inside = [path for folder in FOLDERS if (store.folder / folder).is_dir() for path in (store.folder / folder).iterdir()]
    ours = re.compile(rf"{NAME.pattern}|\d{{6,}}\.json|\d{{6,}}-[0-9a-f]{{16}}\.json")
    for path in sorted([*(path for path in store.folder.iterdir() if path.name not in known), *inside]):
        if not path.name.startswith(".") and not (path.parent != store.folder and ours.fullmatch(path.name)):
            yield f"{path} is no part of an index"
