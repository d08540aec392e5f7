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
from promptdsi.index.blobs import NAME, Blobs, is_plain
from promptdsi.index.ids import Ids
from promptdsi.index.lock import is_held, writing
from promptdsi.index.manifest import Manifest

CURRENT = re.compile(rb"(\d{6,}) ([0-9a-f]{64})\n")
FOLDERS = ("blobs", "generations", "records")
WORK = ".learning"  # checkpoints of a create that is under way
MARK = ".creating"  # stands from the begin of a create to its end: a folder that has it may be begun anew
# What we write before it gets its name. Other hidden files are not ours to remove.
TEMPORARY = re.compile(r"\.(CURRENT|\.creating|\d{6,}(-[0-9a-f]{16})?\.json|[0-9a-f]{64}\.[a-z]+|documents)\..+")


class NoIndex(PromptDSIError):
    """There is no index where one was expected."""


class Store:
    """Paths, and reading and writing of what they lead to. Knows nothing of documents or learning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = Blobs(folder / "blobs")
        self._ids: dict[str, Ids] = {}
        self._docids: dict[str, list[str | None]] = {}

    def commit_mark(self) -> bytes:
        """What CURRENT says, unchecked: it differs as soon as anything was committed, or another index lies here."""
        return (self.folder / "CURRENT").read_bytes()

    def current(self) -> int:
        """The number of the current generation."""
        path = self.folder / "CURRENT"
        if path.is_symlink() or any((self.folder / name).is_symlink() for name in FOLDERS):
            raise DataError("holds links; an index holds its own files only", path=self.folder)
        if not path.is_file():
            if self.begun() and is_held(self.folder):
                raise NoIndex(f"{self.folder}: this index is being created by another process; wait for it to end")
            if self.begun():
                raise NoIndex(f"{self.folder}: this index was begun and not finished; run the same `promptdsi create` again")
            if self.numbers():
                raise NoIndex(f"{self.folder}: this index has lost its file CURRENT: restore it from a copy")
            hint = "" if self.folder.exists() else f"; make one with `promptdsi create {self.folder} CORPUS`"
            raise NoIndex(f"{self.folder}: no index is here{hint}")
        raw = path.read_bytes()
        found = CURRENT.fullmatch(raw)
        if not found:
            raise DataError("is damaged (no generation with its sha256); restore it from a copy", path=path)
        manifest = self.manifest_path(int(found[1]))
        if not is_plain(manifest) or sha256_of(manifest) != found[2].decode():
            if path.read_bytes() != raw:  # a purge came between: it rewrites the generation that was current
                return self.current()
            raise DataError(f"and {manifest.name} do not belong together (sha256 differs); restore both from a copy", path=path)
        return int(found[1])

    def begun(self) -> bool:
        """Whether a create is under way here, or was cut off."""
        return (self.folder / MARK).is_file() and not (self.folder / "CURRENT").exists()

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
        return [Manifest.read(self.manifest_path(number)) for number in range(1, self.current() + 1)]

    def ids(self, name: str) -> Ids:
        """An `ids` blob; the same name is the same content, so the last ones are remembered."""
        if name not in self._ids:
            if len(self._ids) >= 256:
                self._ids.clear()
            self._ids[name] = Ids.from_json(self.blobs.json(name))
        return self._ids[name]

    def docids(self, name: str) -> list[str | None]:
        """The docids of an `ids` blob, without the content marks, which are many times as large; the last ones are remembered."""
        if name not in self._docids:
            if len(self._docids) >= 256:
                self._docids.clear()
            self._docids[name] = Ids.from_json(self.blobs.json(name)).docids
        return self._docids[name]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold an existing index for writing."""
        self.current()  # nothing is put into a folder that is no index, not even a lock
        with writing(self.folder):
            yield

    def check_new(self) -> None:
        """Raise DataError unless an index may be created here: in an empty place, or where a create was cut off."""
        if (self.folder / "CURRENT").exists():
            raise DataError("is an index already; add to it with `promptdsi add`, or create another elsewhere", path=self.folder)
        if any((self.folder / name).is_symlink() for name in FOLDERS):
            raise DataError("holds links; an index holds its own files only", path=self.folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError("is a file; give a new or empty folder", path=self.folder)
        if self.folder.exists() and not self.begun() and any(not TEMPORARY.fullmatch(path.name) for path in self.folder.iterdir()):
            raise DataError("exists and is no index; give a new or empty folder", path=self.folder)

    def begin(self) -> None:
        """The folders of a new index. The mark comes first: without it nothing that is there may be taken for ours."""
        self.check_new()
        make_folder(self.folder)
        if not self.begun():
            with atomic_write(self.folder / MARK) as file:
                file.write(b"promptdsi create is at work here, or was cut off; run the same command again\n")
        for name in FOLDERS:
            make_folder(self.folder / name)

    def abandon(self) -> None:
        """A create that failed takes its empty folders away again, unless it left a checkpoint to go on from."""
        if not (self.folder / WORK).exists():
            for name in ("lock", MARK):
                (self.folder / name).unlink(missing_ok=True)
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
        before: set[str] = set()
        if manifest.number > 1:
            parent = self.manifest().renamed(manifest.erase)
            before = parent.blobs() | set(parent.retired)
        self.write_manifest(replace(manifest, retired=tuple(sorted(before - manifest.blobs()))))
        self.point_to(manifest.number)
        if manifest.number == 1:
            self.clean()

    def point_to(self, number: int) -> None:
        with atomic_write(self.folder / "CURRENT") as file:
            file.write(f"{number:06d} {sha256_of(self.manifest_path(number))}\n".encode())

    def leftovers(self) -> list[Path]:
        """What nothing leads to: temporary files, checkpoints, uncommitted manifests, blobs of no generation."""
        manifest = self.manifest()
        needed = manifest.blobs() | set(manifest.retired) | manifest.erase.keys()  # those a purge removes, or has removed
        found = [self.folder / MARK] if (self.folder / MARK).is_file() else []
        found += [path for folder in (".", *FOLDERS) for path in _files(self.folder / folder) if TEMPORARY.fullmatch(path.name)]
        found += _files(self.folder / WORK)
        found += [self.manifest_path(number) for number in self.numbers() if number > manifest.number]
        found += [path for path in _files(self.blobs.folder) if NAME.fullmatch(path.name) and path.name not in needed]
        return sorted(found)

    def clean(self) -> None:
        """Remove leftovers; only a writer that holds the lock may."""
        remove(self.leftovers())
        with contextlib.suppress(OSError):
            (self.folder / WORK).rmdir()

    def clean_unfinished(self) -> None:
        """Before a create goes on: nothing was committed, so nothing but the mark and the checkpoint is kept."""
        named = [path for folder in FOLDERS[:2] for path in _files(self.folder / folder)]
        remove([path for path in named if NAME.fullmatch(path.name) or path.suffix == ".json" or TEMPORARY.fullmatch(path.name)])
        remove([path for path in _files(self.folder) if TEMPORARY.fullmatch(path.name)])


def _files(folder: Path) -> list[Path]:
    """The files of a folder; none where there is no such folder: empty ones get lost in copies."""
    return [path for path in folder.iterdir() if is_plain(path)] if folder.is_dir() else []
