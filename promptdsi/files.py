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


def sync_directory(folder: Path) -> None:
    """Make a rename or a new name in `folder` survive power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` whole or not at all: a temporary file beside it, synced, then renamed over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; data files get what the user's umask grants, as open() would give.
        os.chmod(temporary, 0o666 & ~UMASK)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # a full disk does not say which
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def adopt(temporary: Path, path: Path) -> None:
    """Give a file that something else wrote its name, as durably as `atomic_write` would."""
    handle = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.chmod(temporary, 0o666 & ~UMASK)
    os.replace(temporary, path)
    sync_directory(path.parent)


def make_folder(folder: Path) -> None:
    """A folder that survives power loss, with the parents it needs."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    os.mkdir(folder)
    sync_directory(folder.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove files for good: gone after power loss too."""
    folders = set()
    for path in paths:
        os.unlink(path)
        folders.add(path.parent)
    for folder in sorted(folders):
        sync_directory(folder)


def user_cache() -> Path:
    """The per-user cache. It holds public data sets and models only, never anything made from a user's data."""
    if chosen := os.environ.get("PROMPTDSI_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "promptdsi"


def offline_by_environment() -> bool:
    """Whether the environment forbids the network, in the Hugging Face libraries' own words."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}
