"""Faults for the tests: a stand-in for `os` inside `promptdsi.files`, through which every change to an index goes.

`Faults(at=k)` dies at the k-th write, sync, rename, unlink or mkdir, half-way through it where it is a write; whatever the
dying code still tries fails too, as it would in a killed process. `Faults(at=k, error=ENOSPC)` lets that call fail instead.
`PowerLoss` also remembers what was synced, and can put a folder back to just that.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import IO, Any

import pytest

from promptdsi import files


class Died(BaseException):
    """The process was killed here."""


class Faults:
    def __init__(self, *, at: int | None = None, error: int | None = None) -> None:
        self.at, self.error = at, error
        self.count, self.deleted = 0, False
        self.log: list[str] = []

    def install(self, patch: pytest.MonkeyPatch) -> Faults:
        patch.setattr(files, "os", self)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def step(self, what: str, path: object = "") -> None:
        if self.deleted:
            raise Died
        self.count += 1
        self.log.append(f"{what} {Path(str(path)).name}")
        if self.count == self.at:
            if self.error is not None:
                # As the kernel does it: a write does not say which file it was for.
                raise OSError(self.error, os.strerror(self.error), *([] if what in ("write", "fsync") else [str(path)]))
            self.deleted = True
            raise Died

    def fsync(self, handle: int) -> None:
        self.step("fsync", os.readlink(f"/proc/self/fd/{handle}"))
        os.fsync(handle)

    def replace(self, source: Any, target: Any) -> None:
        self.step("rename", target)
        os.replace(source, target)

    def unlink(self, path: Any) -> None:
        self.step("unlink", path)
        os.unlink(path)

    def mkdir(self, path: Any) -> None:
        self.step("mkdir", path)
        os.mkdir(path)

    def fdopen(self, handle: int, mode: str) -> Any:
        return File(os.fdopen(handle, mode), self)


class File:
    """A file whose writes are steps; the one that dies leaves half of it written."""

    def __init__(self, file: IO[bytes], faults: Faults) -> None:
        self.file, self.faults = file, faults

    def __enter__(self) -> File:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        try:
            self.faults.step("write", self.file.name)
        except BaseException:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            raise
        return self.file.write(data)


class PowerLoss(Faults):
    """Everything under `root` is on the disk at first; later only what was synced is."""

    def __init__(self, root: Path, *, at: int | None = None) -> None:
        super().__init__(at=at)
        self.root = root
        self.synced: dict[Path, bytes] = {}  # content of files that were synced, under their present names
        self.durable: dict[Path, dict[str, bytes | None]] = {}  # folder → name → content, None for a folder
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())] if root.exists() else []:
            for path in folder.iterdir():
                if path.is_file():
                    self.synced[path] = path.read_bytes()
            self._sync_folder(folder)

    def fsync(self, handle: int) -> None:
        super().fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            self._sync_folder(path)
        else:
            self.synced[path] = path.read_bytes()

    def replace(self, source: Any, target: Any) -> None:
        super().replace(source, target)
        content = self.synced.pop(Path(source), None)
        self.synced.pop(Path(target), None)
        if content is not None:
            self.synced[Path(target)] = content

    def unlink(self, path: Any) -> None:
        super().unlink(path)
        self.synced.pop(Path(path), None)

    def _sync_folder(self, folder: Path) -> None:
        # A name that is on the disk before its content is leads to an empty file.
        self.durable[folder] = {path.name: None if path.is_dir() else self.synced.get(path, b"") for path in folder.iterdir()}

    def lose(self) -> None:
        """Put the folder back to what had reached the disk."""
        if self.root.exists():
            shutil.rmtree(self.root)
        if self.root.name in self.durable.get(self.root.parent, {self.root.name: None}):
            self._restore(self.root)

    def _restore(self, folder: Path) -> None:
        folder.mkdir()
        for name, content in self.durable.get(folder, {}).items():
            if content is None:
                self._restore(folder / name)
            else:
                (folder / name).write_bytes(content)


def heeding() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would its children: tests must not depend on it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
