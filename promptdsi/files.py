"""Files that are never half written: atomic replacement, checksums, and the per-user cache for public things."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

# Asking for the umask means setting it, which no thread may see: once, at import.
UMASK = os.umask(0o077)
os.umask(UMASK)


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system that do not say which file they are about (a full disk) say this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` whole or not at all: a temporary file beside it, synced, then renamed over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(Path(temporary), path)
    except BaseException:
        discard(Path(temporary))
        raise


def discard(path: Path) -> None:
    """Remove a temporary file, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def adopt(temporary: Path, path: Path) -> None:
    """Give a file that something else wrote its name, as durably as `atomic_write` would."""
    sync(temporary)
    _give_name(temporary, path)


def _give_name(temporary: Path, path: Path) -> None:
    # mkstemp makes private files; data files get what the user's umask grants, as open() would give.
    os.chmod(temporary, 0o666 & ~UMASK)
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """A folder that survives power loss, with the parents it needs."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    os.mkdir(folder)
    sync(folder.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove files for good: gone after power loss too."""
    folders = set()
    for path in paths:
        os.unlink(path)
        folders.add(path.parent)
    for folder in sorted(folders):
        sync(folder)


def user_cache() -> Path:
    """The per-user cache. It holds public data sets and models only, never anything made from a user's data."""
    if chosen := os.environ.get("PROMPTDSI_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "promptdsi"


def offline_by_environment() -> bool:
    """Whether the environment forbids the network, in the Hugging Face libraries' own words."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}
