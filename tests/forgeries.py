"""Indexes as a stranger might forge them, at random: a good one with any file changed and all checksums put right.

Every change follows from a random generator, so the number of a case repeats it.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import forged
import numpy as np
from hostile_values import PARTS, SCRIPTS, SEQUENCES, several

from promptdsi.engine.quantized import DTYPES

BYSTANDER = "bystander"  # a folder beside the forged index: whatever is done to the index, it stays as it is


def forge_nothing(rng: random.Random, folder: Path) -> None:
    """For comparison: every command answers, so what the forgeries meet is the is_integer of the code."""


def forge_manifest(rng: random.Random, folder: Path) -> None:
    paths = sorted((folder / "generations").glob("*.json"))
    path = forged.current(folder) if rng.random() < 0.7 else rng.choice(paths)
    forged.manifest(folder, several(rng), path)


def forge_params(rng: random.Random, folder: Path) -> None:
    """Some part of the manifest that reaches deepest into the code."""
    part = rng.choice(["params", "config", "metadata", "event", "prompts", "corpora", "erase", "tombstones"])
    forged.manifest(folder, lambda value: value.update({part: several(rng)(value.get(part, {}))}))


def forge_delta(rng: random.Random, folder: Path) -> None:
    """A generation that is stored against an earlier one, made the current one; it or its base is forged."""
    deltas = [path for path in sorted((folder / "generations").glob("*.json")) if "base" in forged.content(path)]
    if not deltas:  # earlier formats have none
        return forge_manifest(rng, folder)
    path = rng.choice(deltas)
    base = path.with_name(f"{forged.content(path)['base']:06d}.json")
    forged.point(folder, path)
    forged.manifest(folder, several(rng), path if rng.random() < 0.7 else base)


def forge_json(rng: random.Random, folder: Path) -> None:
    forged.json_blob(folder, rng.choice(names(folder, ".json")), several(rng))


def forge_tokenizer(rng: random.Random, folder: Path) -> None:
    def change(value: Any) -> Any:
        if rng.random() < 0.5:
            return several(rng)(value)
        name = rng.choice(sorted(PARTS))
        parts = [{"type": kind} | fields for kind, fields in PARTS[name].items()]
        chosen = [rng.choice(parts) for _ in range(rng.choice([1, 2, 8, 30]))]
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            chosen = [{"type": "Sequence", SEQUENCES[name]: chosen}] * rng.choice([1, 4])
        value[name] = chosen[0]
        return value

    forged.json_blob(folder, forged.content(forged.current(folder))["tokenizer"], change)


def forge_header(rng: random.Random, folder: Path) -> None:
    forged.header(folder, rng.choice(names(folder, ".safetensors")), several(rng))


def forge_tensors(rng: random.Random, folder: Path) -> None:
    """Other numbers behind a right header: NaN, Inf, the largest and the smallest, some that overflow, or noise."""
    name = rng.choice(names(folder, ".safetensors"))
    raw = bytearray((folder / "blobs" / name).read_bytes())
    first = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:first])
    header.pop("__metadata__", None)
    for _ in range(rng.choice([1, 1, 3])):
        entry = header[rng.choice(sorted(header))]
        numbers = np.frombuffer(raw, DTYPES[entry["dtype"]], *_extent(entry, first)).copy()
        if len(numbers):
            _spoil(rng, numbers)
        start = first + entry["data_offsets"][0]
        raw[start : start + numbers.nbytes] = numbers.tobytes()
    forged.blob(folder, name, bytes(raw))


def _extent(entry: Any, first: int) -> tuple[int, int]:
    begin, end = entry["data_offsets"]
    return (end - begin) // np.dtype(DTYPES[entry["dtype"]]).itemsize, first + begin


def _spoil(rng: random.Random, numbers: Any) -> None:
    """Change some numbers of an array, or all."""
    is_integer = numbers.dtype.kind in "iu"
    limits = np.iinfo(numbers.dtype) if is_integer else np.finfo(numbers.dtype)
    values = [limits.max, limits.min, limits.max // 2 if is_integer else np.nan, 0, 1, limits.min // 2 if is_integer else np.inf]
    kind = rng.randrange(5)
    if kind == 0:
        numbers[:] = rng.choice(values)
    elif kind == 1:
        numbers[:] = numbers[::-1].copy()
    elif kind == 2 and is_integer and len(numbers) > 2:  # ascending steps whose sum overflows back to where it should be
        with np.errstate(over="ignore"):
            numbers[1], numbers[2] = limits.max, numbers[0] + limits.max * np.array(2, numbers.dtype)
    else:
        for _ in range(rng.choice([1, 3, 20])):
            numbers[rng.randrange(len(numbers))] = rng.choice(values)


def forge_database(rng: random.Random, folder: Path) -> None:
    forged.database(folder, rng.choice(names(folder, ".sqlite")), rng.choice(SCRIPTS))


def forge_pages(rng: random.Random, folder: Path) -> None:
    """Bytes of a database: its header, its trees, its records."""
    name = rng.choice(names(folder, ".sqlite"))
    raw = bytearray((folder / "blobs" / name).read_bytes())
    for _ in range(rng.choice([1, 4, 30])):
        start = rng.choice([rng.randrange(100), 4096 + rng.randrange(64), rng.randrange(len(raw))]) % len(raw)
        raw[start : start + 2] = rng.choice([b"\0\0", b"\xff\xff", b"\0\2", rng.randbytes(2)])
    if rng.random() < 0.2:
        source, target = rng.randrange(len(raw) // 4096) * 4096, rng.randrange(len(raw) // 4096) * 4096
        raw[target : target + 4096] = raw[source : source + 4096]
    forged.blob(folder, name, bytes(raw))


def forge_bytes(rng: random.Random, folder: Path) -> None:
    """Any file cut, lengthened, or with other bytes; blobs get the name that follows."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 5])):
        start = rng.randrange(len(raw) + 1)
        raw[start : start + rng.choice([0, 1, 4, 1000])] = rng.choice([b"", b"\0", b"9" * 5000, b"[" * 3000, b"\xff\xfe", rng.randbytes(8)])
    if path.parent.name == "blobs":
        forged.blob(folder, path.name, bytes(raw))
    elif path.parent.name == "generations" and path == forged.current(folder):
        forged.raw_manifest(folder, bytes(raw[11:-77]))
    else:
        forged.replace(path, bytes(raw))


def forge_records(rng: random.Random, folder: Path) -> None:
    """A recorded evaluation, or a list of stored queries."""
    path = rng.choice([*(folder / "records").glob("*.json"), None])
    if path is None:
        entries = [entry for entry in forged.content(forged.current(folder))["corpora"] if entry.get("probes") or entry.get("queries")]
        if entries:
            entry = rng.choice(entries)
            forged.json_blob(folder, rng.choice([entry[part] for part in ("probes", "queries") if entry.get(part)]), several(rng))
        return
    forged.replace(path, forged.seal(json.dumps(several(rng)(forged.content(path))).encode()))


def forge_passages(rng: random.Random, folder: Path) -> None:
    """Where passages begin and end: outside the text, backwards, of no document."""

    def change(value: Any) -> Any:
        boundaries = value.setdefault("boundaries", {})
        places = [*boundaries, "0", str(len(value["docids"]) - 1), str(len(value["docids"])), "-1", "x"]
        offsets = [[0, 0], [0, 2**31 - 1], [5, 5, 5], [10**9, 2 * 10**9], [3, 1], [-1, 4], [0], [], [0, 2**31], list(range(1000)), [0.5, 1]]
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.choice(places)
            same = [offset + rng.choice([0, 1, 10**6]) for offset in boundaries.get(place, [0, 1])]
            boundaries[place] = rng.choice([*offsets, same, same])
        return value

    forged.json_blob(folder, rng.choice([entry["ids"] for entry in forged.content(forged.current(folder))["corpora"]]), change)


def forge_kind(rng: random.Random, folder: Path) -> None:
    """A pipe, a link, a folder or a hole in place of a file; a link in place of a folder, or to a file that is somebody's."""
    bystander = folder.parent / BYSTANDER
    if rng.random() < 0.2:
        name = rng.choice([".learning", ".learning", "blobs", "generations", "records", ".creating"])
        if (folder / name).exists():
            (folder / name).rename(folder.parent / f"{folder.name}-{name}")
        (folder / name).symlink_to(rng.choice([bystander, bystander / "notes.txt"]))
        return
    path = rng.choice(
        [*sorted(path for path in folder.rglob("*") if path.is_file()), folder / "lock", folder / "records" / "000001-x.json"]
    )
    path.parent.mkdir(exist_ok=True)  # indexes of earlier formats have no records
    path.unlink(missing_ok=True)
    kind = rng.randrange(6)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(rng.choice(["/dev/zero", "/etc/passwd", str(path), "nowhere", "/dev/tty", str(bystander / "notes.txt")]))
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        os.link(bystander / "notes.txt", path)
    else:
        path.write_bytes(b"" if kind == 4 else b"{")
        os.truncate(path, rng.choice([0, 100, 5 << 30, 1 << 40]))
        if path.parent.name == "blobs":
            forged.rename(folder, path.name, path.name, path.stat().st_size)


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / "blobs").iterdir() if path.suffix == kind)


FORGERIES = [forge_manifest, forge_delta, forge_params, forge_json, forge_tokenizer, forge_header, forge_tensors, forge_database]
FORGERIES += [forge_pages, forge_bytes, forge_kind, forge_records, forge_passages, forge_nothing]
