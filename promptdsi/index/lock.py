"""One writer at a time, by a kernel lock: it dies with its holder, so a crashed process never blocks anybody."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from promptdsi.errors import PromptDSIError


class Busy(PromptDSIError):
    """Another process is writing to the index."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the index for writing; readers need no lock. The file names the holder while it holds, and is empty otherwise."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise Busy(f"{folder}: {who} is writing to this index; wait for it to end") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)
