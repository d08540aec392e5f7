"""The folder of an index: which generation is current, how the next one is committed, and what a crash left behind.

A commit writes blobs, then the manifest, then `CURRENT`; each is synced before the next begins. Files that `CURRENT` does not
lead to are leftovers, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from promptdsi import __version__
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write, files_in, make_folder, read_plain, remove, sha256_of
from promptdsi.index.blobs import Blobs, Ids, is_plain
from promptdsi.index.deltas import bases
from promptdsi.index.documents import Documents, StoredDocuments
from promptdsi.index.entry import Entry
from promptdsi.index.file_checks import MOST_MANIFEST, NAME
from promptdsi.index.lock import is_held, writing
from promptdsi.index.manifest import Manifest, PrunedGeneration
from promptdsi.index.manifest_files import ManifestFiles
from promptdsi.index.results import NoIndex
from promptdsi.index.sealed import FORMAT
from promptdsi.wording import siblings_of, suggest_path

CACHED_BLOBS = 256
CHECKERS = 4  # threads that verify checksums
CURRENT = re.compile(rb"(\d{6,8}) ([0-9a-f]{64})\n")
MOST_CURRENT = 100  # bytes
FOLDERS = ("blobs", "generations", "records")
TAGS_FILE = "tags.json"  # names of generations (`index/tags.py`)
WORK = ".learning"  # checkpoints of a create that is under way
MARK = ".creating"  # exists while a create is under way: a folder that has it may be started again
# Files that have not got their name yet. Other hidden files are not ours to remove.
TEMPORARY = re.compile(r"\.(CURRENT|tags\.json|\.creating|\d{6,}(-[0-9a-f]{16})?\.json|[0-9a-f]{64}\.[a-z]+|documents|rows)\..+")


class Store:
    """The files of an index; knows nothing of documents or training."""

    def __init__(self, folder: Path, *, cached: int = CACHED_BLOBS) -> None:
        self.folder = folder
        self.blobs = Blobs(folder / "blobs")
        self.manifests = ManifestFiles(folder / "generations")
        self.checks: list[str] = []  # what a child process checked, where the index is a stranger's
        # The same name is the same content, so the last `ids` blobs are cached; docids also without the hashes, which are far larger.
        self.ids: Callable[[str], Ids] = functools.lru_cache(cached)(self.blobs.ids)
        self.outline: Callable[[str], Ids] = functools.lru_cache(cached)(lambda name: self.blobs.ids(name)._replace(marks=""))
        self.erased: Callable[[str], list[int]] = functools.cache(lambda name: self.blobs.ids(name).erased())

    def docids(self, entry: Entry) -> list[str | None]:
        """The docids of a corpus."""
        return self._as_many(entry, self.outline(entry.ids)).docids

    def hashed_docids(self, entry: Entry) -> list[tuple[str | None, str]]:
        """The docids of a corpus, each with its content hash."""
        ids = self._as_many(entry, self.ids(entry.ids))
        return [(docid, ids.content_hash(position)) for position, docid in enumerate(ids.docids)]

    def _as_many(self, entry: Entry, ids: Ids) -> Ids:
        if len(ids.docids) != entry.count:
            problem = f"holds {len(ids.docids):,} docids, and the corpus {entry.name} has {entry.count:,} documents"
            raise DataError(f"{problem}; run `promptdsi verify`", path=self.blobs.folder / entry.ids)
        return ids

    def commit_mark(self) -> bytes:
        """What CURRENT says, unchecked: it differs as soon as anything was committed, or another index lies here."""
        return read_plain(self.folder / "CURRENT", MOST_CURRENT)

    def current(self) -> int:
        """The number of the current generation."""
        path = self.folder / "CURRENT"
        self._check_links()
        if path.is_symlink():
            raise DataError("holds links; an index holds its own files only", path=self.folder)
        if not path.exists():
            if self.begun() and is_held(self.folder):
                raise NoIndex(f"{self.folder}: this index is being created by another process; wait for it to end")
            if self.begun():
                raise NoIndex(f"{self.folder}: this index was begun and not finished; run the same `promptdsi create` again")
            if self.numbers():
                raise NoIndex(f"{self.folder}: this index has lost its file CURRENT: restore it from a copy")
            others = [path for path in siblings_of(self.folder) if (path / "CURRENT").is_file()]
            create = "" if self.folder.exists() else f"; make one with `promptdsi create {self.folder} CORPUS`"
            raise NoIndex(f"{self.folder}: no index is here{suggest_path(self.folder, others) or create}")
        raw = self.commit_mark()
        match = CURRENT.fullmatch(raw)
        if not match:
            raise DataError("is damaged (no generation with its sha256); restore it from a copy", path=path)
        manifest = self.manifest_path(int(match[1]))
        if not is_plain(manifest) or hashlib.sha256(read_plain(manifest, MOST_MANIFEST)).hexdigest() != match[2].decode():
            if self.commit_mark() != raw:  # a purge came between: it rewrites the generation that was current
                return self.current()
            raise DataError(f"and {manifest.name} do not belong together (sha256 differs); restore both from a copy", path=path)
        return int(match[1])

    def _check_links(self) -> None:
        """Raise DataError if a folder is a link: what is removed as a leftover would be somebody's own files."""
        if any((self.folder / name).is_symlink() for name in (*FOLDERS, WORK)):
            raise DataError("holds links; an index holds its own files only", path=self.folder)

    def begun(self) -> bool:
        """Whether a create is under way here, or was interrupted."""
        return (self.folder / MARK).is_file() and not (self.folder / "CURRENT").exists()

    def manifest_path(self, number: int) -> Path:
        return self.manifests.path(number)

    def manifest(self, number: int | None = None) -> Manifest:
        """A generation, the current one by default."""
        current = self.current()
        if number is not None and not 1 <= number <= current:
            raise UsageError(f"{self.folder} has generations 1 to {current}, not {number}")
        return self.manifests.read(current if number is None else number)

    def check(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Raise DataError unless these blobs of a generation are intact; in threads, since hashing releases the GIL."""
        ordered = sorted(names, key=lambda name: (-manifest.sizes[name], name))

        def check_share(first: int) -> None:  # the largest first; a task for each of thousands of small ones would take longer than it
            for name in ordered[first::CHECKERS]:
                self.blobs.check(name, manifest.sizes[name])

        with ThreadPoolExecutor(CHECKERS, thread_name_prefix="promptdsi-verify") as pool:
            for _ in pool.map(check_share, range(CHECKERS)):
                pass

    def numbers(self) -> list[int]:
        """Every generation that has a manifest, committed or not."""
        return self.manifests.numbers()

    def log(self) -> list[Manifest | PrunedGeneration]:
        """All committed generations, oldest first, also those that were pruned."""
        return self.manifests.log(self.current())

    def history(self) -> list[Manifest]:
        """All committed generations that were not pruned, oldest first."""
        return [generation for generation in self.log() if isinstance(generation, Manifest)]

    def documents(self, entry: Entry) -> StoredDocuments:
        """The stored documents of a corpus; there are none where the index stores nothing of them."""
        return StoredDocuments(partial(self.document_file, *file) for file in entry.document_files)

    def document_file(self, name: str, positions: range) -> Documents:
        """One file of a corpus's stored documents, opened."""
        return Documents(self.blobs.path(name), positions)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock an existing index for writing."""
        self.current()  # nothing is written to a folder that is no index, not even a lock
        with writing(self.folder):
            yield

    def ready(self, names: Callable[[Manifest], set[str]], *, clean: bool = True) -> Manifest:
        """The current generation, for a writer: an interrupted purge or prune completed, the named blobs checked, leftovers removed.

        Without `clean` leftovers stay: among them may be a checkpoint to continue from.
        """
        manifest = self.finish(self.manifest())
        self.check(manifest, names(manifest))
        if clean:
            self.clean()
        return manifest

    def purge_pending(self, current: Manifest) -> bool:
        """Whether something the current generation's purge should have erased is still there."""
        return bool(self.blobs.names() & current.erase.keys())

    def prune_pending(self, current: Manifest) -> bool:
        """Whether the current generation's prune is unfinished: the first of its generations goes last."""
        return bool(current.pruned) and not self.manifests.is_pruned(min(current.pruned))

    def finish(self, current: Manifest) -> Manifest:
        """Complete the purge or prune that made the current generation, if it was interrupted; every writer does this first."""
        if self.purge_pending(current):
            history = {manifest.number: manifest for manifest in self.history()}
            renamed = {
                manifest.number: self.hide_erased(manifest.renamed(current.erase))
                for manifest in history.values()
                if manifest.number < current.number and self._names_erased(manifest, current)
            }
            for number in history.keys() - {current.number}:
                if number in renamed or not renamed.keys().isdisjoint(bases(number)):
                    self.write_manifest(renamed.get(number, history[number]), states=history | renamed)
            remove([self.blobs.folder / name for name in sorted(self.blobs.names() & current.erase.keys())])
        if self.prune_pending(current):
            states, pruned = {manifest.number: manifest for manifest in self.history()}, set(current.pruned)
            for number in states.keys() - pruned - {current.number}:
                if not pruned.isdisjoint(bases(number)):
                    self.write_manifest(states[number], states=states, without=pruned)
            for number in sorted(pruned & states.keys(), reverse=True):  # what is stored against others goes before them
                self.manifests.prune(states[number], current.number)
        return current

    def _names_erased(self, manifest: Manifest, current: Manifest) -> bool:
        return bool(manifest.blobs() & current.erase.keys() or current.erase.keys() & set(manifest.retired))

    def hide_erased(self, manifest: Manifest) -> Manifest:
        """The generation with every document that has no docid marked as deleted."""
        firsts = zip(manifest.corpora, manifest.firsts(), strict=True)
        erased = {first + position for entry, first in firsts for position in self.erased(entry.ids)}
        return replace(manifest, tombstones=tuple(sorted(erased.union(manifest.tombstones))))

    def check_new(self) -> None:
        """Raise DataError unless an index may be created here: in a new or empty folder, or where a create was interrupted."""
        if (self.folder / "CURRENT").exists():
            raise DataError("is an index already; add to it with `promptdsi add`, or create another elsewhere", path=self.folder)
        self._check_links()
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError("is a file; give a new or empty folder", path=self.folder)
        if self.folder.exists() and not self.begun() and any(not TEMPORARY.fullmatch(path.name) for path in self.folder.iterdir()):
            raise DataError("exists and is no index; give a new or empty folder", path=self.folder)

    def begin(self) -> None:
        """Make the folders of a new index. The mark comes first: only a folder that has it may be cleaned."""
        self.check_new()
        make_folder(self.folder)
        if not self.begun():
            with atomic_write(self.folder / MARK) as file:
                file.write(b"promptdsi create is running here, or was interrupted; run the same command again\n")
        for name in FOLDERS:
            make_folder(self.folder / name)

    def abandon(self) -> None:
        """Remove the empty folders of a create that failed, unless it left a checkpoint to continue from."""
        if not (self.folder / WORK).exists():
            for name in ("lock", MARK):
                (self.folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                for name in (*FOLDERS, "."):
                    (self.folder / name).rmdir()

    def write_manifest(self, manifest: Manifest, **how: Any) -> None:
        """Write a manifest; the keywords are those of `ManifestFiles.write`."""
        # Sizes recorded by earlier generations are kept, not measured again: damage must not be recorded as correct.
        sizes = {name: manifest.sizes.get(name) or self.blobs.size(name) for name in manifest.blobs()}
        self.manifests.write(replace(manifest, sizes=sizes, format=FORMAT, written_by=__version__), **how)

    def commit(self, manifest: Manifest, *, others: Iterable[Manifest] | None = None) -> Manifest:
        """Make a generation the current one. Its blobs are written and synced.

        `others` are the generations that stay, where not all do.
        """
        # What its base can be was read with its parent.
        states = self.manifests.read_chain(self.current()) if manifest.number > 1 else {}
        before: set[str] = set()
        if states and others is None:
            parent = states[max(states)].renamed(manifest.erase)
            before = parent.blobs() | set(parent.retired)
        before.update(*(other.blobs() for other in others or ()))
        retired = tuple(sorted(before - manifest.blobs()))
        self.write_manifest(replace(manifest, retired=retired), states=states, without=manifest.pruned)
        self.point_to(manifest.number)
        if manifest.number == 1:
            self.clean()
        return manifest

    def point_to(self, number: int) -> None:
        with atomic_write(self.folder / "CURRENT") as file:
            file.write(f"{number:06d} {sha256_of(self.manifest_path(number))}\n".encode())

    def leftovers(self) -> list[Path]:
        """Files that belong to no generation: temporary files, checkpoints, uncommitted manifests, unused blobs."""
        manifest = self.manifest()
        needed = manifest.blobs() | set(manifest.retired) | manifest.erase.keys()  # those a purge removes, or has removed
        paths = [self.folder / MARK] if (self.folder / MARK).is_file() else []
        paths += [path for folder in (".", *FOLDERS) for path in files_in(self.folder / folder) if TEMPORARY.fullmatch(path.name)]
        paths += files_in(self.folder / WORK)
        paths += [self.manifest_path(number) for number in self.numbers() if number > manifest.number]
        paths += [path for path in files_in(self.blobs.folder) if NAME.fullmatch(path.name) and path.name not in needed]
        return sorted(paths)

    def clean(self) -> None:
        """Remove leftovers; only a writer that holds the lock may."""
        remove(self.leftovers())
        with contextlib.suppress(OSError):
            (self.folder / WORK).rmdir()

    def clean_unfinished(self) -> None:
        """Before a create continues: nothing was committed, so everything but the mark and the checkpoint is removed."""
        files = [path for folder in FOLDERS[:2] for path in files_in(self.folder / folder)]
        remove([path for path in files if NAME.fullmatch(path.name) or path.suffix == ".json" or TEMPORARY.fullmatch(path.name)])
        remove([path for path in files_in(self.folder) if TEMPORARY.fullmatch(path.name)])
