"""`Index`: the one way to create, open, search and change a durable index.

index = Index.create("my-index", "notes/")
hits = index.search("who wrote hamlet", k=10)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, cast, overload

from promptdsi.corpus.corpus import Corpus, Document
from promptdsi.engine.query_encoder import resolve_engine
from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.evaluate import EvalResult
from promptdsi.index import eval_records, export, filters, results, search, strangers
from promptdsi.index.generation import Generation, Opening
from promptdsi.index.manifest import Manifest
from promptdsi.index.opening import open_generation
from promptdsi.index.results import Hits, SearchRequest, SearchResult
from promptdsi.index.shards import Cluster
from promptdsi.index.store import Store
from promptdsi.index.tags import tagged
from promptdsi.index.upkeep import IndexUpkeep
from promptdsi.index.verb_options import AddOptions, CreateOptions, SearchOptions, SyncOptions, TuneOptions

Grown = TypeVar("Grown", results.Report, results.SyncReport, results.TeachReport)


class Index(IndexUpkeep):
    """A durable index, opened at one generation, whatever others write. `report` is what the last create, add or tune did."""

    def __init__(self, store: Store, manifest: Manifest, opening: Opening, *, pinned: bool = False) -> None:
        self.store, self.path, self.opening, self.pinned = store, store.folder, opening, pinned
        self.report: results.Report | None = None
        self.cluster = Cluster(store, opening) if opening.on else None
        self._manifest, self._opened = manifest, None

    @classmethod
    def create(
        cls,
        path: str | Path,
        corpus: Corpus | str | Path | Callable[[], Corpus],
        *,
        method: str = "promptdsi",
        preset: str = "best",
        effort: str | None = None,
        words: bool = True,
        prompts: str | None = None,
        backbone: str | None = None,
        params: Mapping[str, Any] | None = None,
        seed: int = 0,
        device: str = "auto",
        offline: bool = False,
        **options: Unpack[CreateOptions],
    ) -> Self:
        """Train an index on its first corpus, D0, in a new folder. Interrupted, the same call continues from its checkpoint.

        `effort` is `quick` (rows are the documents' vectors), `normal` (rows are learned, the default) or `full` (the encoder is trained
        too; meanwhile the index answers as with `quick`). Without `words` only rows count. `preset`, then `params` (`{"fit.epochs": 1}`)
        set what the method is made with. `store` says what is stored of documents: `text`, `title` or `none`. `keep_probes` dev queries are
        stored to measure drift with, `keep_queries` stores the training queries. `on_start` is called with an estimate.
        """
        from promptdsi.index import effort as levels  # imports torch
        from promptdsi.index import method_io, update
        from promptdsi.index.arrivals import as_corpus, checked

        given = {"prompts": prompts, "backbone": backbone, "seed": seed, "device": device, "offline": offline}
        given["encoding.words"] = None if words else False
        params = {**method_io.effort_params(effort), **(params or {}), **{key: value for key, value in given.items() if value is not None}}
        chosen, folder = update.Options(device=device, **checked(options, CreateOptions)), Store(Path(path).expanduser())
        report = levels.create(folder, lambda: as_corpus(corpus), method_io.make_method(method, preset, params), effort, chosen)
        index = cls.open(path, device=device)
        index.report = report
        return index

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        at: int | str | None = None,
        check: bool = True,
        engine: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        on: str | None = None,
        trust: bool | None = None,
    ) -> Self:
        """Open an index for reading and writing, at the newest generation or, read-only, at `at`, a number or a tag. Writes nothing.

        `check` verifies the checksum of every file of the generation now; without it files are opened when first needed. `engine`
        encodes queries: `onnx` (no torch), `int8` (faster, approximate) or `torch` (any `device`), on `threads` CPU threads (one per core).
        `on` is a cluster, `ray://HOST:PORT` or `ray://local`, whose processes hold the rows; the results are the same, also of writing.
        Without `trust` (the default where another user owns the folder) a child process opens and searches it first: `store.checks`.
        """
        store = Store(Path(path).expanduser(), **({} if on is None else {"cached": 1}))  # on a cluster ids lie in the shards
        store.checks = strangers.screen(store.folder, at, trust)
        number, opening = None if at is None else tagged(store, at), Opening(check, resolve_engine(engine, device), device, threads, on)
        index = cls(store, store.manifest(number), opening, pinned=at is not None)
        return index._load(number, manifest=index.manifest) if check else index

    def reopen(self, *, at: int | None = None) -> Self:
        """Another `Index` of the same folder; files that this one verified are not verified again, files about to be purged not used."""
        index = type(self)(self.store, self.manifest, self.opening, pinned=at is not None)
        return index._load(at, verified=self.opened.manifest.blobs(), erase=self.manifest.erase if at is not None else {})

    @staticmethod
    def commit_mark(path: str | Path) -> bytes:
        """Bytes that differ whenever anything was committed to the index in a folder, or another index took its place."""
        return Store(Path(path).expanduser()).commit_mark()

    @property
    def opened(self) -> Generation:
        """The opened generation. After a write it is opened when next needed: writing itself opens no document."""
        return self._opened or self._load(self.manifest.number).opened

    def __len__(self) -> int:
        return self.manifest.documents

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, generation {self.generation}, {len(self):,} documents)"

    def refresh(self) -> bool:
        """Move to the newest generation; true if there was a newer one."""
        return not self.pinned and self.store.current() != self.generation and self._committed(True)

    def add(self, corpus: Corpus | str | Path, **options: Unpack[AddOptions]) -> results.Report:
        """Learn the next corpus and commit a generation. No earlier document or query is read.

        `fast` leaves training to `tune`, `update` replaces changed documents, `max_drift` bounds the fall of Hits@10 on stored probes.
        """
        from promptdsi.index import update as training
        from promptdsi.index.arrivals import as_corpus, checked

        chosen = training.Options(device=self.opening.device, **checked(options, AddOptions))
        self.report = training.add(self._writable(), as_corpus(corpus), chosen, self.cluster)  # true even if merging is interrupted
        self.report = self._grown(self.report, documents=False) if self.report.added else self._committed(self.report)
        return self.report

    def tune(self, *, effort: str | None = None, **options: Unpack[TuneOptions]) -> list[results.Report]:
        """Train what was not trained yet, one generation for each corpus; D0 only where it is alone, with more `effort` than before."""
        from promptdsi.index import effort as levels

        # Should one corpus fail, those before it stay tuned.
        reports = levels.tune(self._committed(self._writable()), effort, device=self.opening.device, **options)
        self.report = reports[-1] if reports else self.report
        return reports

    def sync(self, folders: str | Path | Sequence[str | Path], **options: Unpack[SyncOptions]) -> results.SyncReport:
        """Bring the index in step with folders of files: add what is new, replace what changed, delete what is gone, in one generation."""
        from promptdsi.index import sync
        from promptdsi.index.arrivals import checked

        chosen = {"device": self.opening.device, "cluster": self.cluster, **checked(options, SyncOptions)}
        report = sync.sync(self._writable(), sync.folder_list(folders), **chosen)
        changed = not options.get("dry_run") and (report.added or report.updated or report.deleted)
        return self._grown(report) if changed else self._committed(report)

    def teach(self, corrections: Sequence[tuple[str, str]], *, max_drift: float | None = None) -> results.TeachReport:
        """Let documents learn queries: pairs of a query and the docid it should retrieve. No other row changes; `rollback` undoes it."""
        from promptdsi.index import teach  # with torch

        return self._grown(teach.teach(self._writable(), corrections, self.opening, max_drift=max_drift, cluster=self.cluster))

    def upgrade(self) -> Manifest:
        """Let words count beside the rows of an index that has none, from the text it stores. Nothing is trained."""
        from promptdsi.index import upgrade

        return self._committed(upgrade.upgrade(self._writable()))

    @overload
    def search(self, queries: str, **options: Unpack[SearchOptions]) -> Hits: ...

    @overload
    def search(self, queries: list[str], **options: Unpack[SearchOptions]) -> list[Hits]: ...

    def search(self, queries: Any, **options: Unpack[SearchOptions]) -> Hits | list[Hits]:
        """The k best documents of a query, or of each of several queries; those with a confidence below `min_confidence` are left out.

        `where` are conditions on metadata that all must hold: `"year>=2020"`, several of these, or `{"author": ["Ada", "Grace"]}`.
        """
        where = filters.parse_where(given) if (given := options.pop("where", ())) else ()
        request = SearchRequest("", **cast("dict[str, Any]", options))._replace(where=where)
        if isinstance(queries, str):
            return self.search_batch([request._replace(query=queries)])[0].hits
        return [result.hits for result in self.search_batch([request._replace(query=query) for query in queries])]

    async def asearch(self, queries: Any, **options: Unpack[SearchOptions]) -> Any:
        """`search` in a thread, for servers."""
        return await asyncio.to_thread(lambda: self.search(queries, **options))

    def search_batch(self, requests: Sequence[SearchRequest], *, stop: Callable[[], bool] = lambda: False) -> list[SearchResult]:
        """Search for several requests at once, each with its own options. SearchStopped is raised as soon as `stop` returns true."""
        return search.search_batch(self.opened, requests, stop=stop)

    def facets(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """Fields of the metadata to filter by, each with its most frequent values and their numbers of documents."""
        return filters.facets(self.opened.passages.field_counts())

    def get(self, docid: str) -> Document:
        """What the index stores of a document."""
        return self.opened.get(docid)

    def locate(self, docid: str) -> results.Location | None:
        """The corpus of a document and whether it is deleted; None where the index has no such document."""
        return self.opened.locate(docid)

    def suggest(self, docid: str) -> str:
        """The end of an error message that names the most similar docid, or nothing."""
        return self.opened.passages.similar_docid(docid)

    def neighbors(self, docid: str, *, k: int = 5) -> list[results.Neighbor]:
        """The k documents whose rows are most similar to a document's."""
        return search.similar_documents(self.opened, docid, k)

    def evaluate(
        self, corpus: Corpus, *, split: str = "test", record: bool = False, run: Path | None = None, run_k: int = 100
    ) -> EvalResult:
        """Exact ranks of the relevant documents of a split's queries.

        `record` stores the ranks, no text, in the index; `run` is a TREC run file to write, with the best `run_k` documents of each query.
        """
        return search.evaluate_split(self.opened, corpus, split, run, run_k, record=record)

    def eval_records(self) -> list[results.EvalRecord]:
        """The evaluations that were recorded, by generation, then by corpus."""
        return eval_records.read_records(self.store)

    def export(self, to: str, folder: str | Path) -> list[str]:
        """Write `faiss`, `beir` or `hf` files into a new folder; returns their names."""
        return export.export((self if self.opening.on is None else type(self).open(self.path, at=self.generation)).opened, to, Path(folder))

    def _grown(self, report: Grown, *, documents: bool = True) -> Grown:
        """As `_committed`, and small corpora that have gathered are merged. Should that fail, the change stands, and the report says why.

        `add` merges without their `documents`, of which it opens none of the past.
        """
        from promptdsi.index.merge_corpora import merge_gathered
        from promptdsi.index.update import on_interrupt

        self._committed(report)  # so that the change is seen here even if merging is interrupted
        try:
            with on_interrupt(f"generation {report.generation} was committed; only merging small corpora was stopped"):
                report = replace(report, merged=merge_gathered(self.store, documents=documents))
        except results.Busy:
            pass  # somebody else writes: the next change merges
        except (PromptDSIError, OSError) as error:
            report = replace(report, not_merged=str(error))
        return self._committed(report)

    def _load(self, at: int | None, **how: Any) -> Self:
        """Open the generation now; its manifest may have been replaced by a purge since it was read."""
        opened = open_generation(self.store, self.opening, at=at, **how)
        self._opened, self._manifest = self.cluster.use(opened) if self.cluster else opened, opened.manifest
        return self
