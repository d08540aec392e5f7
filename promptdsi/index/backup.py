"""Backup of a live index, and an index restored from one.

A backup is a folder of files named by their sha256, and the file `BACKUP`, which says what they were: the last finished backup. A new
one adds the files that are missing, replaces `BACKUP`, and then removes what it does not need: killed at any moment, the one before is
whole. Readers and writers of the index go on meanwhile. Nothing that is committed changes but by purge and prune; should one of them
come between, the backup starts again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from promptdsi import __version__
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write, copy_checked, files_in, make_folder, read_plain, remove, sha256_of
from promptdsi.index.file_checks import BACKUP, HASH, MOST_MANIFEST
from promptdsi.index.lock import writing
from promptdsi.index.manifest import Manifest, PrunedGeneration, now
from promptdsi.index.results import BackupReport
from promptdsi.index.sealed import FORMAT, sealed, unsealed
from promptdsi.index.store import CURRENT, TAGS_FILE, Store
from promptdsi.index.verify import verify
from promptdsi.progress import Progress, silent

FILE, OBJECTS = "BACKUP", "blobs"
ATTEMPTS = 5


class Snapshot(NamedTuple):
    """An index at one moment: what CURRENT says, its small files by path, its blobs with their sizes, and marks of its history."""

    current: bytes
    files: dict[str, bytes]
    blobs: dict[str, int]
    history: list[str]

    def to_content(self) -> dict[str, Any]:
        files = {path: _digest(raw) for path, raw in self.files.items()}
        content = {"current": self.current.decode("ascii"), "files": files, "blobs": self.blobs, "history": self.history}
        return {"format": FORMAT, "written_by": __version__, "time": now()} | content


def backup(store: Store, folder: Path, *, progress: Progress = silent) -> BackupReport:
    """Copy what a folder does not hold yet of an index, of all its generations."""
    store.current()
    if folder.resolve().is_relative_to(store.folder.resolve()):
        raise UsageError(f"{folder} lies inside the index; a backup needs a folder elsewhere")
    strange = (
        [path.name for path in folder.iterdir() if path.name != "lock" and not path.name.startswith(f".{FILE}.")] if folder.exists() else []
    )
    if strange and FILE not in strange:
        raise DataError("exists and is no backup; give a new or empty folder", path=folder)
    before = _read(folder) if FILE in strange else None
    make_folder(folder)
    with writing(folder):
        for _ in range(ATTEMPTS):
            snapshot = _snapshot(store)
            if before is not None and before["history"] != snapshot.history[: len(before["history"])]:
                raise DataError("is a backup of another index, or of a copy that changed otherwise; give another folder", path=folder)
            if before is None:  # from here on the folder is known as a backup, though not as a finished one
                before = snapshot._replace(current=b"", files={}, blobs={}).to_content()
                _write(folder, before)
            make_folder(folder / OBJECTS)
            try:
                copied = _copy(store, snapshot, folder, progress)
            except (DataError, FileNotFoundError):
                if _is_current(store, snapshot):
                    raise
                continue  # a purge or a prune removed it meanwhile
            if _is_current(store, snapshot):
                content = snapshot.to_content()
                _write(folder, content)
                needed = {*snapshot.blobs, *(f"{digest}.json" for digest in content["files"].values())}
                temporary = [path for path in files_in(folder) if path.name.startswith(f".{FILE}.")]
                remove([*temporary, *(path for path in files_in(folder / OBJECTS) if path.name not in needed)])
                return BackupReport(int(snapshot.current.split()[0]), *copied, len(snapshot.blobs), sum(snapshot.blobs.values()))
        raise DataError("is purged or pruned again and again; run the same command again later", path=store.folder)


def restore(folder: Path, store: Store, *, progress: Progress = silent) -> int:
    """Make an index from the last finished backup in a folder; everything is verified before it becomes an index. Its generation."""
    if not (folder / FILE).exists():
        raise DataError("is no backup: it has no file BACKUP", path=folder)
    content = _read(folder)
    if not content["current"]:
        raise DataError("holds no finished backup; run `promptdsi backup` again", path=folder)
    store.begin()
    with writing(store.folder):
        store.check_new()
        store.clean_unfinished()
        with progress("copying", total=len(content["blobs"]), unit="blobs") as advance:
            for name in content["blobs"]:
                copy_checked(folder / OBJECTS / name, store.blobs.folder / name, name[:HASH])
                advance(1)
        for path, digest in content["files"].items():
            copy_checked(folder / OBJECTS / f"{digest}.json", store.folder / path, digest)
        number, digest = content["current"].split()
        if f"generations/{number}.json" not in content["files"] or sha256_of(store.manifest_path(int(number))) != digest:
            raise DataError(f"names generation {number}, which it does not hold; take another backup", path=folder / FILE)
        if problems := verify(store, current=int(number), progress=progress).problems:
            raise DataError(f"does not verify ({problems[0]}); nothing was restored", path=folder)
        with atomic_write(store.folder / "CURRENT") as file:
            file.write(content["current"].encode("ascii"))
        store.finish(store.manifest())
        store.clean()
        return int(number)


def _snapshot(store: Store) -> Snapshot:
    """The index now. Files are read before and after they are understood: what a purge rewrites in between is read again."""
    for _ in range(ATTEMPTS):
        current = store.commit_mark()
        if not CURRENT.fullmatch(current) or store.current() != int(current.split()[0]):
            continue
        files = _manifests(store, current)
        log = store.manifests.log(int(current.split()[0]))
        if _manifests(store, current) == files:
            blobs = {name: state.sizes[name] for state in log if isinstance(state, Manifest) for name in state.blobs()}
            others = [path for path in files_in(store.folder / "records") if path.suffix == ".json" and not path.name.startswith(".")]
            others += [path for path in [store.folder / TAGS_FILE] if path.is_file()]
            files |= {path.relative_to(store.folder).as_posix(): read_plain(path, MOST_MANIFEST) for path in others}
            return Snapshot(current, files, dict(sorted(blobs.items())), [_mark(state) for state in log])
    raise DataError("changes again and again; run the same command again later", path=store.folder)


def _manifests(store: Store, current: bytes) -> dict[str, bytes]:
    numbers = range(1, int(current.split()[0]) + 1)
    return {f"generations/{number:06d}.json": read_plain(store.manifest_path(number), MOST_MANIFEST) for number in numbers}


def _is_current(store: Store, snapshot: Snapshot) -> bool:
    """Whether every generation of a snapshot is still as it was; later ones may have followed."""
    return _manifests(store, snapshot.current).items() <= snapshot.files.items()


def _mark(state: Manifest | PrunedGeneration) -> str:
    """What neither purge nor prune changes of a generation, as a hash: by it a backup knows its index."""
    event = {name: value for name, value in state.event.items() if name != "folders"}
    return _digest(json.dumps([state.number, state.kind, state.time, event], sort_keys=True).encode())[:16]


def _copy(store: Store, snapshot: Snapshot, folder: Path, progress: Progress) -> tuple[int, int]:
    """Copy what is missing or damaged in the backup: how many files, and their bytes."""
    count = size = 0
    for raw in snapshot.files.values():
        target = folder / OBJECTS / f"{_digest(raw)}.json"
        if not _is_intact(target, len(raw)):
            with atomic_write(target) as file:
                file.write(raw)
            count, size = count + 1, size + len(raw)
    with progress("copying", total=len(snapshot.blobs), unit="blobs") as advance:
        for name, expected in snapshot.blobs.items():
            if not _is_intact(folder / OBJECTS / name, expected):
                copy_checked(store.blobs.path(name), folder / OBJECTS / name, name[:HASH])
                count, size = count + 1, size + expected
            advance(1)
    return count, size


def _is_intact(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size and sha256_of(path) == path.name[:HASH]


def _read(folder: Path) -> dict[str, Any]:
    if (folder / OBJECTS).is_symlink():
        raise DataError("holds links; a backup holds its own files only", path=folder)
    content = unsealed(folder / FILE)
    try:
        BACKUP(content)
        if content["current"] and not CURRENT.fullmatch(content["current"].encode("utf-8")):
            raise ValueError("current is no generation")
    except ValueError as error:
        raise DataError(f"is no list of a backup: {str(error).strip()}", path=folder / FILE) from None
    return content


def _write(folder: Path, content: dict[str, Any]) -> None:
    with atomic_write(folder / FILE) as file:
        file.write(sealed(content))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
