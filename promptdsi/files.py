"""Durable file operations: atomic replacement, syncing, checksums; and the per-user cache of public data."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from promptdsi.errors import DataError

BLOCK = 1 << 20  # bytes that are copied at once
SPARSE_SIZE, SPARSE_RATIO = 64 << 20, 64  # a large file with so few of its bytes on disk is mostly a hole, which no writer of ours leaves

# The umask can only be read by setting it, which other threads would see: once, at import.
UMASK = os.umask(0o077)
os.umask(UMASK)


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading; DataError for anything else: a link leads elsewhere, and opening a pipe or a device may wait."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, or a socket
            raise
        what = "a link" if path.is_symlink() else "no regular file"
        raise DataError(f"is {what}; an index holds its own files only", path=path) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or _is_sparse(handle, status):
        os.close(handle)
        problem = "is mostly a hole" if stat.S_ISREG(status.st_mode) else "is no regular file"
        raise DataError(f"{problem}; an index holds its own files only", path=path)
    return os.fdopen(handle, "rb")


def _is_sparse(handle: int, status: os.stat_result) -> bool:
    """Whether a large file is mostly a hole: it costs its sender nothing, and us the time to read it."""
    blocks = getattr(status, "st_blocks", None)
    if blocks is None or status.st_size <= SPARSE_SIZE or blocks * 512 * SPARSE_RATIO >= status.st_size:
        return False
    hole = os.lseek(handle, 0, os.SEEK_HOLE)  # the end, where a file system counts no blocks and knows no holes
    os.lseek(handle, 0, os.SEEK_SET)
    return hole < status.st_size


def read_plain(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; its size is checked before it is read."""
    with open_plain(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise DataError(f"holds {size:,} bytes, at most {most:,} are read; restore it from a copy", path=path)
        return file.read(size)  # not `most`: as many bytes are set aside before the first is read


def files_in(folder: Path) -> list[Path]:
    """The regular files of a folder, links left out; none where the folder is missing: empty folders get lost in copies."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [folder / entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def sha256_of(path: Path) -> str:
    """The sha256 of a file as hex digits, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to system errors that do not name a file (a full disk)."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` completely or not at all: to a temporary file beside it, synced, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _rename(Path(temporary), path)
    except BaseException:
        discard(Path(temporary))
        raise


def copy_checked(source: Path, target: Path, sha256: str) -> None:
    """Copy a regular file as durably as `atomic_write`; DataError, and no copy, unless it has this checksum."""
    digest = hashlib.sha256()
    with open_plain(source) as file, atomic_write(target) as copy:
        while block := file.read(BLOCK):
            digest.update(block)
            copy.write(block)
        if digest.hexdigest() != sha256:
            raise DataError("is damaged (sha256 differs); restore it from another copy", path=source)


@contextlib.contextmanager
def temporary_file(folder: Path, prefix: str) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file in a folder, open for writing, for `adopt`; without that it is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=prefix)
    try:
        with naming(Path(name)), os.fdopen(handle, "wb") as file:
            yield file, Path(name)
    finally:
        discard(Path(name))


def write_unsynced(path: Path, content: bytes) -> None:
    """Write a temporary file that `adopt` will sync."""
    with naming(path), open(path, "wb") as file:
        file.write(content)


def discard(path: Path) -> None:
    """Remove a temporary file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def adopt(temporary: Path, path: Path) -> None:
    """Sync and rename a file that other code wrote, as durably as `atomic_write`."""
    sync(temporary)
    _rename(temporary, path)


def _rename(temporary: Path, path: Path) -> None:
    # mkstemp makes private files; data files get the permissions that open() would give.
    os.chmod(temporary, 0o666 & ~UMASK)
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, synced to disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    os.mkdir(folder)
    sync(folder.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove files and sync their folders to disk."""
    folders = set()
    for path in paths:
        os.unlink(path)
        folders.add(path.parent)
    for folder in sorted(folders):
        sync(folder)


def user_cache() -> Path:
    """The per-user cache. It holds public data sets and models only, nothing derived from a user's data."""
    if folder := os.environ.get("PROMPTDSI_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "promptdsi"


def offline_by_environment() -> bool:
    """Whether the environment forbids downloads, by the variable of the Hugging Face libraries."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}


TENSOR_TYPES = ("U64", "I64", "F64", "F32", "U32", "I32", "U16", "I16", "I8", "U8")  # the largest first: every tensor is then aligned


def tensor_header(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]) -> tuple[list[str], bytes]:
    """The header of a safetensors file, as the library writes it, from types and shapes; and the order in which the contents follow.

    For tensors that are never in memory as a whole: the library writes only such as are.
    """
    order = sorted(tensors, key=lambda name: (TENSOR_TYPES.index(tensors[name][0]), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in order:
        kind, shape = tensors[name]
        begin, end = end, end + math.prod(shape) * int(kind[1:]) // 8
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    content = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    content += b" " * (-len(content) % 8)
    return order, len(content).to_bytes(8, "little") + content
