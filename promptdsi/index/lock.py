"""The lock of an index: one writer, any number of readers, who need none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from promptdsi.errors import DataError
from promptdsi.index.results import Busy

LONGEST = 32  # bytes of a lock


def is_held(folder: Path) -> bool:
    """Whether a writer holds the lock; needs no permission to write."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would let us wait
    except OSError:
        return False
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode) and os.pread(
            handle, 1, 0
        ):  # a holder writes its process id; locking an empty file would disturb a writer that is about to lock
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Lock the index for writing; readers need no lock. The file contains the holder's process id, and is empty otherwise.

    The kernel's lock ends with its holder: a crashed process never blocks another.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise DataError("is no regular file; an index holds its own files only", path=folder / "lock")
        if os.fstat(handle).st_size > LONGEST:  # another name, by a hard link, of somebody's file, which would be emptied
            raise DataError("holds something else than the number of a process; remove it", path=folder / "lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            writer = f"process {holder}" if holder.isdigit() else "another process"
            raise Busy(f"{folder}: {writer} is writing to this index; wait for it to end") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)
