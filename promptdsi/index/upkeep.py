"""What looks after an index: hiding and erasing documents, going back, names of generations, checks, pruning, backups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from promptdsi.errors import UsageError
from promptdsi.index import backup, delete, purge, results, strangers, tags
from promptdsi.index.generation import Generation
from promptdsi.index.manifest import Manifest, PrunedGeneration
from promptdsi.index.shards import Cluster
from promptdsi.index.store import Store
from promptdsi.index.verb_options import PruneOptions
from promptdsi.progress import Progress, silent

Committed = TypeVar("Committed")


class IndexUpkeep:
    """The methods of `Index` that neither search nor train. After a write the newest generation is opened when next needed."""

    store: Store
    pinned: bool
    cluster: Cluster | None
    _manifest: Manifest | None
    _opened: Generation | None

    @property
    def manifest(self) -> Manifest:
        """The manifest of the generation this index answers from."""
        if self._manifest is None:
            self._manifest = self._opened.manifest if self._opened else self.store.manifest()
        return self._manifest

    @property
    def generation(self) -> int:
        return self.manifest.number

    def folders_of(self, docids: Sequence[str] | None = None) -> dict[str, Path]:
        """The folders in which files of these documents, by default the deleted ones, still lie: `sync` would add them again."""
        return delete.folders_of(self.store, self.manifest, docids)

    def delete(self, docids: str | Sequence[str]) -> Manifest:
        """Hide documents. Their bytes stay, so that `undelete` can show them again, until `purge`."""
        return self._committed(delete.delete(self._writable(), delete.docid_list(docids), self.cluster))

    def undelete(self, docids: str | Sequence[str]) -> Manifest:
        """Show deleted documents again."""
        return self._committed(delete.undelete(self._writable(), delete.docid_list(docids), self.cluster))

    def purge(self, docids: str | Sequence[str] | None = None) -> Manifest:
        """Erase the bytes of documents, or of all deleted ones, from every generation. What was learned is not unlearned."""
        return self._committed(purge.purge(self._writable(), None if docids is None else delete.docid_list(docids)))

    def rollback(self, to: int | str | None = None) -> Manifest:
        """Commit a new generation that equals an earlier one, by default the one before the last change; again, one further back."""
        return self._committed(delete.rollback(self._writable(), None if to is None else tags.tagged(self.store, to)))

    def log(self) -> list[Manifest | PrunedGeneration]:
        """Every generation, oldest first, also those that were pruned."""
        return self.store.log()

    def tags(self) -> dict[str, int]:
        """The names of generations that have some."""
        return tags.read_tags(self.store)

    def tag(self, name: str, generation: int | None = None) -> int:
        """Name a generation, by default the newest: `at` and `--at` take the name, and `prune` keeps the generation. Its number."""
        return tags.tag(self._writable(), name, generation)

    def untag(self, name: str) -> int:
        """Remove the name of a generation, which stays. Its number."""
        return tags.untag(self._writable(), name)

    def prune(self, **options: Unpack[PruneOptions]) -> results.PruneReport:
        """Drop generations that are neither among the newest `keep` nor younger than `older_than` days, and the files only they need.

        The newest one stays, tagged ones, and the one that `rollback` leads to. `merge` puts small corpora together, so that an index of
        many small additions opens faster: the same rows, bit for bit, in fewer files. With `dry_run` nothing is written.
        """
        from promptdsi.index.prune import prune

        return self._committed(prune(self._writable(), **options))

    def backup(self, folder: str | Path, *, progress: Progress = silent) -> results.BackupReport:
        """Copy every generation into a folder, or what that backup lacks; readers and writers go on meanwhile."""
        return backup.backup(self.store, Path(folder).expanduser(), progress=progress)

    @classmethod
    def restore(cls, folder: str | Path, path: str | Path, *, progress: Progress = silent) -> int:
        """Make an index in a new or empty folder `path` from the backup in `folder`, verified first. Its generation."""
        return backup.restore(Path(folder).expanduser(), Store(Path(path).expanduser()), progress=progress)

    def info(self) -> results.IndexSummary:
        """What this generation contains."""
        return self.manifest.summary()

    def disk_usage(self) -> results.DiskUsage:
        """The size of the folder, and what `purge` or the next write would remove."""
        return delete.disk_usage(self.store, self.manifest)

    def verify(self, *, untrusted: bool = False, progress: Progress = silent) -> results.Verification:
        """Check every file and every generation; with `untrusted` in a child process, which also opens and searches the index."""
        return strangers.verify_any(self.store, untrusted=untrusted, progress=progress)

    def _writable(self) -> Store:
        if self.pinned:
            raise UsageError(f"the index was opened at generation {self.generation}: that one is read only")
        return self.store

    def _committed(self, result: Committed) -> Committed:
        """Forget the generation that was current before a write; the newest one is opened when next needed."""
        self._opened = self._manifest = None
        return result
