"""The folder of an index: which generation is current, how the next one is committed, and what a crash left behind.

A commit writes blobs, then the manifest, then `CURRENT`; each is synced before the next begins. Whatever `CURRENT` does not
lead to is a leftover, and the next writer removes it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from promptdsi import __version__
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.files import atomic_write, make_folder, remove, sha256_of
from promptdsi.index.blobs import Blobs, is_plain
from promptdsi.index.lock import writing
from promptdsi.index.manifest import Manifest

CURRENT = re.compile(rb"(\d{6,}) ([0-9a-f]{64})\n")
FOLDERS = ("blobs", "generations", "records")
WORK = ".learning"  # checkpoints of a create that is under way


class NoIndex(PromptDSIError):
    """There is no index where one was expected."""


class Store:
    """Paths, and reading and writing of what they lead to. Knows nothing of documents or learning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = Blobs(folder / "blobs")

    def current(self) -> int:
        """The number of the current generation."""
        path = self.folder / "CURRENT"
        if path.is_symlink() or any((self.folder / name).is_symlink() for name in FOLDERS):
            raise DataError("holds links; an index holds its own files only", path=self.folder)
        if not path.is_file():
            if self.begun():
                hint = "was begun and not finished" if not self.numbers() else "has lost its file CURRENT: restore it from a copy"
                raise NoIndex(f"{self.folder}: this index {hint}; if it was being created, run the same `promptdsi create` again")
            raise NoIndex(f"{self.folder}: no index is here; make one with `promptdsi create {self.folder} CORPUS`")
        found = CURRENT.fullmatch(path.read_bytes())
        if not found:
            raise DataError("is damaged (no generation with its sha256); restore it from a copy", path=path)
        manifest = self.manifest_path(int(found[1]))
        if not manifest.is_file() or sha256_of(manifest) != found[2].decode():
            raise DataError(f"and {manifest.name} do not belong together (sha256 differs); restore both from a copy", path=path)
        return int(found[1])

    def begun(self) -> bool:
        return all((self.folder / name).is_dir() for name in FOLDERS)

    def manifest_path(self, number: int) -> Path:
        return self.folder / "generations" / f"{number:06d}.json"

    def manifest(self, number: int | None = None) -> Manifest:
        """A generation, the current one by default."""
        current = self.current()
        if number is not None and not 1 <= number <= current:
            raise UsageError(f"{self.folder} has generations 1 to {current}, not {number}")
        path = self.manifest_path(current if number is None else number)
        made = Manifest.read(path)
        if made.number != (current if number is None else number):
            raise DataError(f"is the manifest of generation {made.number}; restore it from a copy", path=path)
        return made

    def check(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Raise DataError unless these blobs of a generation are whole; several at a time, since hashing leaves Python alone."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            for _ in pool.map(lambda name: self.blobs.check(name, manifest.sizes[name]), sorted(names)):
                pass

    def numbers(self) -> list[int]:
        """Every generation that has a manifest, committed or not."""
        names = [path.stem for path in (self.folder / "generations").glob("*.json")] if (self.folder / "generations").is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())

    def history(self) -> list[Manifest]:
        """All committed generations, oldest first."""
        return [self.manifest(number) for number in range(1, self.current() + 1)]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold an existing index for writing."""
        self.current()  # nothing is put into a folder that is no index, not even a lock
        with writing(self.folder):
            yield

    def check_new(self) -> None:
        """Raise DataError unless an index may be created here: in an empty or unfinished place."""
        if (self.folder / "CURRENT").exists():
            raise DataError("is an index already; add to it with `promptdsi add`, or create another elsewhere", path=self.folder)
        if self.folder.exists() and not self.begun() and any(path.name not in (*FOLDERS, "lock") for path in self.folder.iterdir()):
            raise DataError("exists and is no index; give a new or empty folder", path=self.folder)

    def begin(self) -> None:
        """The folders of a new index."""
        self.check_new()
        for name in FOLDERS:
            make_folder(self.folder / name)

    def abandon(self) -> None:
        """A create that failed takes its empty folders away again, unless it left a checkpoint to go on from."""
        if not (self.folder / WORK).exists():
            (self.folder / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                for name in (*FOLDERS, "."):
                    (self.folder / name).rmdir()

    def write_manifest(self, manifest: Manifest) -> None:
        # What earlier generations said of a blob is carried on, not measured again: damage must not become the truth.
        sizes = {name: manifest.sizes.get(name) or self.blobs.size(name) for name in sorted(manifest.blobs())}
        whole = replace(manifest, sizes=sizes, written_by=__version__)
        with atomic_write(self.manifest_path(manifest.number)) as file:
            file.write(whole.to_bytes())

    def commit(self, manifest: Manifest) -> None:
        """Make a generation the current one. Its blobs are there and synced: that is how blobs are written."""
        self.write_manifest(manifest)
        self.point_to(manifest.number)

    def point_to(self, number: int) -> None:
        with atomic_write(self.folder / "CURRENT") as file:
            file.write(f"{number:06d} {sha256_of(self.manifest_path(number))}\n".encode())

    def leftovers(self) -> list[Path]:
        """What nothing leads to: temporary files, uncommitted manifests, blobs of no generation."""
        current = self.current()
        needed = {name for manifest in self.history() for name in manifest.blobs()}
        found = [path for folder in (".", *FOLDERS) for path in (self.folder / folder).iterdir() if _is_temporary(path)]
        found += [self.manifest_path(number) for number in self.numbers() if number > current]
        found += [path for path in self.blobs.folder.iterdir() if path.name not in needed and not _is_temporary(path)]
        return sorted(found)

    def clean(self) -> None:
        """Remove leftovers; only a writer that holds the lock may."""
        remove([path for path in self.leftovers() if is_plain(path)])

    def clean_unfinished(self) -> None:
        """Before a create goes on: nothing was committed, so nothing but the checkpoint is kept."""
        remove([path for folder in FOLDERS for path in (self.folder / folder).iterdir() if is_plain(path)])
        remove([path for path in self.folder.iterdir() if _is_temporary(path) and is_plain(path)])


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name != WORK
