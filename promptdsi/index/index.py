"""`Index`: the one way to create, open, search and change a durable index.

    index = Index.create("my-index", Corpus.read("d0"))
    index.add(Corpus.read("d1"))
    for hit in index.search("who wrote hamlet", k=10):
        print(hit.docid, hit.score, hit.title)

An `Index` answers from one generation, also while another process writes; `refresh` moves it to the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import Document
from promptdsi.errors import UsageError
from promptdsi.evaluation.evaluate import EvalResult
from promptdsi.files import sha256_of
from promptdsi.index import delete, explain, export, purge, search, verify
from promptdsi.index.generation import Generation, check_engine, open_generation, suggest_similar
from promptdsi.index.manifest import Manifest
from promptdsi.index.measure import evaluate_split
from promptdsi.index.results import (
    DiskUsage,
    DocumentSample,
    EvalRecord,
    Hit,
    IndexSummary,
    Location,
    Neighbor,
    Report,
    SearchRequest,
    SearchResult,
    Verification,
    WorkEstimate,
)
from promptdsi.index.store import Store
from promptdsi.progress import Progress, silent

OnStart = Callable[[WorkEstimate], None]


class Index:
    """A durable index, opened at one generation. `report` is what the last create, add or tune did."""

    def __init__(
        self,
        store: Store,
        *,
        manifest: Manifest,
        pinned: bool = False,
        check: bool = True,
        engine: str = "auto",
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.store, self.pinned, self.device = store, pinned, device
        self.report: Report | None = None
        self._open: dict[str, Any] = {"engine": engine, "device": device, "threads": threads, "check": check}
        check_engine(engine, device)
        self._manifest: Manifest | None = manifest
        self._opened: Generation | None = None

    @classmethod
    def create(
        cls,
        path: str | Path,
        corpus: Corpus,
        *,
        method: str = "promptdsi",
        preset: str = "best",
        prompts: str | None = None,
        backbone: str | None = None,
        params: Mapping[str, Any] | None = None,
        name: str | None = None,
        store: str = "text",
        keep_probes: int = 0,
        keep_queries: bool = False,
        seed: int = 0,
        device: str = "auto",
        offline: bool = False,
        progress: Progress = silent,
        on_start: OnStart | None = None,
    ) -> Self:
        """Train an index on its first corpus, D0, in a new folder. Interrupted, the same call continues from its checkpoint.

        `preset` and then `params` set the parameters of the method (`{"fit": {"epochs": 1}}` or `{"fit.epochs": 1}`); `prompts`
        and `backbone` are the two most often changed. `store` says what is stored of documents: `text`, `title` or `none`.
        `keep_probes` dev queries are stored to measure drift with later, `keep_queries` stores the training queries for
        `search(explain=True)`. `on_start` is called with an estimate of the work before training begins.
        """
        from promptdsi.index import update as training  # imports torch
        from promptdsi.index.method_io import make_method

        given = {"prompts": prompts, "backbone": backbone, "seed": seed, "device": device, "offline": offline}
        chosen = make_method(method, preset, {**(params or {}), **{key: value for key, value in given.items() if value is not None}})
        options = training.Options(
            name=name, store=store, keep_probes=keep_probes, keep_queries=keep_queries, device=device, progress=progress, on_start=on_start
        )
        report = training.create(Store(Path(path).expanduser()), corpus, chosen, options)
        index = cls.open(path, device=device)
        index.report = report
        return index

    @staticmethod
    def help_create(method: str, preset: str, params: Mapping[str, Any]) -> None:
        """In a helper process of torchrun: train together with the first process, which runs `create` and writes the index."""
        from promptdsi.index.method_io import make_method
        from promptdsi.training.distributed import receive_corpus

        make_method(method, preset, params).fit(receive_corpus())

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        at: int | None = None,
        check: bool = True,
        engine: str = "auto",
        device: str = "auto",
        threads: int | None = None,
    ) -> Self:
        """Open an index for reading and writing, at the newest generation or, read-only, at generation `at`. Writes nothing.

        With `check` the checksum of every file of the generation is verified now; without, files are opened when they are first
        needed and not verified. `engine` encodes queries: `onnx` needs no torch, `int8` is faster and approximate, `torch` runs
        on any `device`. `threads` is the number of CPU threads of one search (default: one per core).
        """
        store = Store(Path(path).expanduser())
        index = cls(store, manifest=store.manifest(at), pinned=at is not None, engine=engine, device=device, threads=threads, check=check)
        if check:
            index._opened = open_generation(store, at=at, **index._open)
        return index

    def reopen(self, *, at: int | None = None) -> Self:
        """Another `Index` of the same folder, at the newest generation or at `at`; files that this one verified are not verified again.

        Blobs that an unfinished purge is about to erase are not used.
        """
        verified = self.opened.manifest.blobs()
        opened = open_generation(self.store, at=at, verified=verified, erase=self.manifest.erase if at is not None else {}, **self._open)
        index = type(self)(self.store, manifest=opened.manifest, pinned=at is not None, **self._open)
        index._opened = opened
        return index

    @staticmethod
    def current_generation(path: str | Path) -> int:
        """The number of the newest generation of the index in a folder."""
        return Store(Path(path).expanduser()).current()

    @staticmethod
    def commit_mark(path: str | Path) -> bytes:
        """Bytes that differ whenever anything was committed to the index in a folder, or another index took its place."""
        return Store(Path(path).expanduser()).commit_mark()

    @property
    def path(self) -> Path:
        return self.store.folder

    @property
    def manifest(self) -> Manifest:
        """The manifest of the generation this index answers from."""
        if self._opened is not None:
            return self._opened.manifest
        if self._manifest is None:
            self._manifest = self.store.manifest()
        return self._manifest

    @property
    def opened(self) -> Generation:
        """The opened generation. After a write it is opened when next needed: writing itself opens no document."""
        if self._opened is None:
            self._opened = open_generation(self.store, at=self.manifest.number, **self._open)
        return self._opened

    @property
    def generation(self) -> int:
        return self.manifest.number

    def __len__(self) -> int:
        """The number of documents that can be retrieved."""
        return self.manifest.documents

    def refresh(self) -> bool:
        """Move to the newest generation; true if there was a newer one."""
        if self.pinned or self.store.current() == self.generation:
            return False
        self._forget_generation()
        return True

    # Training -------------------------------------------------------------------------------------------------------------

    def add(
        self,
        corpus: Corpus,
        *,
        name: str | None = None,
        fast: bool = False,
        update: bool = False,
        max_drift: float | None = None,
        keep_probes: int = 0,
        keep_queries: bool = False,
        seed: int | None = None,
        progress: Progress = silent,
        on_start: OnStart | None = None,
    ) -> Report:
        """Learn the next corpus and commit a generation. No earlier document or query is read.

        `fast` adds the documents without training; `tune` trains them later. `update` replaces documents whose content changed.
        With `max_drift` nothing is committed if Hits@10 on the stored probe queries falls by more than that.
        """
        from promptdsi.index import update as training

        options = training.Options(
            name=name,
            fast=fast,
            update=update,
            max_drift=max_drift,
            keep_probes=keep_probes,
            keep_queries=keep_queries,
            seed=seed,
            device=self.device,
            progress=progress,
            on_start=on_start,
        )
        self.report = training.add(self._writable(), corpus, options)
        self._forget_generation()
        return self.report

    def tune(
        self, *, max_drift: float | None = None, seed: int | None = None, progress: Progress = silent, on_start: OnStart | None = None
    ) -> list[Report]:
        """Train the corpora that were added with `fast`, one generation each."""
        from promptdsi.index import update as training

        options = training.Options(max_drift=max_drift, seed=seed, device=self.device, progress=progress, on_start=on_start)
        try:
            reports = training.tune(self._writable(), options)
        finally:
            self._forget_generation()  # corpora tuned before one that failed stay
        self.report = reports[-1] if reports else self.report
        return reports

    # Search and evaluation ------------------------------------------------------------------------------------------------

    @overload
    def search(self, queries: str, *, k: int = 10, explain: bool = False) -> list[Hit]: ...

    @overload
    def search(self, queries: list[str], *, k: int = 10, explain: bool = False) -> list[list[Hit]]: ...

    def search(self, queries: str | list[str], *, k: int = 10, explain: bool = False) -> list[Hit] | list[list[Hit]]:
        """The k best documents of a query, or of each of several queries."""
        if isinstance(queries, str):
            return self.search_batch([SearchRequest(queries, k, explain)])[0].hits
        return [result.hits for result in self.search_batch([SearchRequest(query, k, explain) for query in queries])]

    def search_batch(self, requests: Sequence[SearchRequest], *, stop: Callable[[], bool] = lambda: False) -> list[SearchResult]:
        """Search for several requests at once, each with its own options. SearchStopped is raised as soon as `stop` returns true."""
        return search.search_batch(self.opened, requests, stop=stop)

    def get(self, docid: str) -> Document:
        """What the index stores of a document."""
        return self.opened.get(docid)

    def locate(self, docid: str) -> Location | None:
        """The corpus of a document and whether it is deleted; None where the index has no such document."""
        return self.opened.locate(docid)

    def suggest(self, docid: str) -> str:
        """The end of an error message that names the most similar docid, or nothing."""
        return suggest_similar(docid, self.opened.row_of)

    def neighbors(self, docid: str, *, k: int = 5) -> list[Neighbor]:
        """The k documents whose rows are most similar to a document's."""
        self.opened.get(docid)  # raises where there is no such document
        return explain.nearest_rows(self.opened, [self.opened.row_of[docid]], k)[0]

    def sample(self, limit: int) -> DocumentSample:
        """At most `limit` documents, evenly spaced in order of arrival, with their rows."""
        return self.opened.sample(limit)

    def evaluate(
        self, corpus: Corpus, *, split: str = "test", record: bool = False, run: Path | None = None, run_k: int = 100
    ) -> EvalResult:
        """Exact ranks of the relevant documents of a split's queries.

        `record` stores the ranks, no text, in the index; `run` is a file to write the best `run_k` documents of each query to, in
        TREC format.
        """
        result = evaluate_split(self.opened, corpus, split, run, run_k)
        if record:
            ranks = [min(query.ranks) for query in result.query_ranks]
            self.store.write_record(EvalRecord(self.generation, corpus.name, split, ranks))
        return result

    def eval_records(self) -> list[EvalRecord]:
        """The evaluations that were recorded, by generation, then by corpus."""
        return self.store.read_records()

    # Deletion and history -------------------------------------------------------------------------------------------------

    def delete(self, docids: str | Sequence[str]) -> Manifest:
        """Hide documents. Their bytes stay, so that `undelete` can show them again, until `purge`."""
        return self._committed(delete.delete(self._writable(), _docids(docids)))

    def undelete(self, docids: str | Sequence[str]) -> Manifest:
        """Show deleted documents again."""
        return self._committed(delete.undelete(self._writable(), _docids(docids)))

    def purge(self, docids: str | Sequence[str] | None = None) -> Manifest:
        """Erase the bytes of documents, or of all deleted ones, from every generation. What was learned is not unlearned."""
        return self._committed(purge.purge(self._writable(), None if docids is None else _docids(docids)))

    def rollback(self, to: int | None = None) -> Manifest:
        """Commit a new generation that equals an earlier one, by default the one before."""
        return self._committed(delete.rollback(self._writable(), to))

    def log(self) -> list[Manifest]:
        """Every generation, oldest first."""
        return self.store.history()

    def checksum(self, generation: int) -> str:
        """The sha256 of the manifest file of a generation."""
        return sha256_of(self.store.manifest_path(generation))

    # Description and maintenance ------------------------------------------------------------------------------------------

    def info(self) -> IndexSummary:
        """What this generation contains."""
        return self.manifest.summary()

    def disk_usage(self) -> DiskUsage:
        """The size of the folder, and what `purge` or the next write would remove."""
        return delete.disk_usage(self.store, self.manifest)

    def verify(self, *, progress: Progress = silent) -> Verification:
        """Check every file against its checksum and every generation for consistency."""
        return verify.verify(self.store, progress=progress)

    def export(self, to: str, folder: str | Path) -> list[str]:
        """Write `faiss`, `beir` or `hf` files into a new folder; returns their names."""
        return export.export(self.opened, to, Path(folder))

    def _writable(self) -> Store:
        if self.pinned:
            raise UsageError(f"the index was opened at generation {self.generation}: that one is read only")
        return self.store

    def _committed(self, manifest: Manifest) -> Manifest:
        self._forget_generation()
        return manifest

    def _forget_generation(self) -> None:
        self._opened = self._manifest = None


def _docids(docids: str | Sequence[str]) -> list[str]:
    listed = [docids] if isinstance(docids, str) else list(docids)
    if not listed or "" in listed:
        raise UsageError("no docid was given")
    return listed
