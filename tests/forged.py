"""Indexes as a stranger might forge them: any file changed, with every checksum that leads to it put right again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi.index.deltas import to_content
from promptdsi.index.sealed import HEAD, sealed
from promptdsi.index.store import Store

Change = Callable[[Any], Any]  # changes a value in place, or returns another


def copied(source: Path, target: Path) -> Path:
    """A copy that shares its files with the source: `replace` makes new ones."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    return target


def replace(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def current(folder: Path) -> Path:
    """The manifest of the current generation."""
    return folder / "generations" / f"{(folder / 'CURRENT').read_text().split()[0]}.json"


def content(path: Path) -> Any:
    return json.loads(path.read_bytes())["content"]


def seal(body: bytes) -> bytes:
    """What `sealed` makes of a value, for any bytes."""
    return HEAD + body + b',"sha256":"%s"}\n' % hashlib.sha256(HEAD + body).hexdigest().encode()


def point(folder: Path, path: Path | None = None) -> None:
    path = path or current(folder)
    replace(folder / "CURRENT", f"{path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())


def manifest(folder: Path, change: Change, path: Path | None = None) -> None:
    """Change a manifest, by default the current one."""
    path, last = path or current(folder), current(folder)
    value = content(path)
    changed = change(value)
    replace(path, seal(json.dumps(value if changed is None else changed).encode()))
    point(folder, last)


def in_full(folder: Path) -> None:
    """Store the current generation in full, not against an earlier one, so that each of its fields can be forged."""
    path = current(folder)
    replace(path, sealed(to_content(Store(folder).manifest(), None)))
    point(folder, path)


def raw_manifest(folder: Path, body: bytes) -> None:
    """Text in place of the current manifest's content, sealed."""
    path = current(folder)
    replace(path, seal(body))
    point(folder, path)


def blob(folder: Path, name: str, body: bytes) -> str:
    """Replace the content of a blob in all generations: its new name follows from its content."""
    new = f"{hashlib.sha256(body).hexdigest()}.{name.partition('.')[2]}"
    replace(folder / "blobs" / new, body)
    rename(folder, name, new, len(body))
    return new


def rename(folder: Path, name: str, new: str, size: int) -> None:
    """Let all generations need another blob."""
    last = current(folder)
    for path in (folder / "generations").glob("*.json"):
        text = json.dumps(content(path)).replace(name, new)
        value = json.loads(text)
        if isinstance(value.get("sizes"), dict) and new in value["sizes"]:
            value["sizes"][new] = size
        replace(path, seal(json.dumps(value).encode()))
    if new != name:
        (folder / "blobs" / name).unlink(missing_ok=True)
    point(folder, last)


def json_blob(folder: Path, name: str, change: Change) -> str:
    value = json.loads((folder / "blobs" / name).read_bytes())
    changed = change(value)
    return blob(folder, name, json.dumps(value if changed is None else changed).encode())


def header(folder: Path, name: str, change: Change) -> str:
    """Change the header of a safetensors blob."""
    raw = (folder / "blobs" / name).read_bytes()
    first = 8 + int.from_bytes(raw[:8], "little")
    value = json.loads(raw[8:first])
    changed = change(value)
    text = changed if isinstance(changed, bytes) else json.dumps(value if changed is None else changed).encode()
    text += b" " * (-len(text) % 8)  # as every writer does, so that tensors are aligned
    return blob(folder, name, len(text).to_bytes(8, "little") + text + raw[first:])


def tensors(folder: Path, name: str, **changes: Any) -> str:
    """Replace tensors of a safetensors blob, or let functions change them; the header fits."""
    from safetensors.numpy import load, save

    arrays = load((folder / "blobs" / name).read_bytes())
    for part, change in changes.items():
        array = arrays[part].copy()
        changed = change(array) if callable(change) else change
        arrays[part] = array if changed is None else np.ascontiguousarray(changed)
    return blob(folder, name, save(arrays))


def database(folder: Path, name: str, script: str) -> str:
    """Run SQL on the documents of a corpus."""
    path = folder / "forged.sqlite"
    path.write_bytes((folder / "blobs" / name).read_bytes())
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.executescript(script)
    finally:
        connection.close()
    body = path.read_bytes()
    path.unlink()
    return blob(folder, name, body)
