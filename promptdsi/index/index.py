"""The index as a person uses it: create, open, add, search, delete, purge, roll back, verify.

    index = Index.create("my-index", Corpus.read("d0"))
    index.add(Corpus.read("d1"))
    for hit in index.search("who wrote hamlet", k=10):
        print(hit.docid, hit.score, hit.title)

An `Index` answers from one generation, also while another process writes; `refresh` looks for a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import Document
from promptdsi.errors import DataError, UsageError
from promptdsi.evaluation.evaluate import EvalResult, load_queries, rank_queries
from promptdsi.index import hits, purge, removal
from promptdsi.index.documents import STORES
from promptdsi.index.export import export
from promptdsi.index.hits import Hit
from promptdsi.index.manifest import Manifest
from promptdsi.index.options import OPTIONS, Options
from promptdsi.index.records import record
from promptdsi.index.snapshot import Snapshot, kind_of, open_snapshot
from promptdsi.index.store import Store
from promptdsi.index.verify import Verified, verify
from promptdsi.progress import Progress, silent

if TYPE_CHECKING:
    from promptdsi.index.report import Report
    from promptdsi.methods.promptdsi import PromptDSI


class Index:
    """A durable index, opened at one generation. `report` tells what the last create, add or tune did."""

    def __init__(self, store: Store, snapshot: Snapshot, *, pinned: bool = False, **how: Any) -> None:
        self.store, self.pinned, self.how = store, pinned, how
        self._snapshot: Snapshot | None = snapshot
        self.report: Report | None = None

    @classmethod
    def create(
        cls,
        path: str | Path,
        corpus: Corpus,
        *,
        method: str = "promptdsi",
        preset: str = "best",
        **keywords: Any,
    ) -> Self:
        """Learn D0 into a new folder.

        Keywords are those of `Options` (`name`, `store`, `keep_probes`, `keep_queries`, …) and of the method; what is not
        given comes from the preset.
        """
        _refuse(keywords, ("fast", "update", "max_drift"), "create")
        chosen = {key: value for key, value in keywords.items() if key in OPTIONS and key != "seed"}
        params = {key: value for key, value in keywords.items() if key not in OPTIONS or key in ("device", "seed")}
        options = Options(**chosen)
        if options.store not in STORES:
            raise UsageError(f"store={options.store!r} is none of {', '.join(STORES)}")
        store = Store(Path(path).expanduser())
        from promptdsi.index import growth  # brings torch with it

        report = growth.create(store, corpus, make_method(method, preset, params), options)
        index = cls.open(path, device=options.device)
        index.report = report
        return index

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
        """Open for reading; every file the generation needs is checked, unless `check` is off. Never writes.

        `engine` encodes queries: `onnx` without torch, `int8` quicker and a little off, `torch` on any `device`. `threads` is how
        many one search may use: by default, one a core.
        """
        store = Store(Path(path).expanduser())
        how: dict[str, Any] = {"engine": engine, "device": device, "threads": threads}
        return cls(store, open_snapshot(store, at=at, check=check, **how), pinned=at is not None, **how)

    @property
    def snapshot(self) -> Snapshot:
        """The generation that answers. After a write of ours it is opened when next asked: writing itself opens no document."""
        if self._snapshot is None:
            self._snapshot = open_snapshot(self.store, **self.how)
        return self._snapshot

    @property
    def generation(self) -> int:
        return self.snapshot.manifest.number

    def __len__(self) -> int:
        """Documents that can be found."""
        return self.snapshot.manifest.documents

    def refresh(self) -> bool:
        """Move to the newest generation; tells whether there was one."""
        if self.pinned or self.store.current() == self.generation:
            return False
        self._snapshot = None
        return True

    # Growing --------------------------------------------------------------------------------------------------------------

    def add(self, corpus: Corpus, **choices: Any) -> Report:
        """Learn the next corpus (`fast`, `update`, `max_drift`, `keep_probes`, …: see `Options`); nothing old is read."""
        _refuse(choices, ("store",), "add")
        from promptdsi.index import growth

        return self._after(growth.add(self._writable(), corpus, self._options(choices)))

    def tune(self, **choices: Any) -> list[Report]:
        """Train the corpora that were added fast."""
        from promptdsi.index import growth

        try:
            reports = growth.tune(self._writable(), self._options(choices))
        finally:
            self._snapshot = None  # corpora tuned before one that failed stay
        for report in reports:
            self._after(report)
        return reports

    # Asking ---------------------------------------------------------------------------------------------------------------

    @overload
    def search(self, queries: str, *, k: int = 10, explain: bool = False) -> list[Hit]: ...

    @overload
    def search(self, queries: list[str], *, k: int = 10, explain: bool = False) -> list[list[Hit]]: ...

    def search(self, queries: str | list[str], *, k: int = 10, explain: bool = False) -> list[Hit] | list[list[Hit]]:
        """The k best documents of a query, or of each of several."""
        if isinstance(queries, str):
            return hits.search(self.snapshot, [queries], k=k, explain=explain)[0]
        return hits.search(self.snapshot, list(queries), k=k, explain=explain)

    def get(self, docid: str) -> Document:
        """What the index stores of a document."""
        row = self.snapshot.live(docid)
        if row is None:
            if docid in self.snapshot.row_of:
                raise DataError(f"the document {docid!r} is deleted; `undelete` shows it again", path=self.store.folder)
            hint = removal.close_to(docid, self.snapshot.row_of)
            raise DataError(f"holds no document {docid!r} in generation {self.generation}{hint}", path=self.store.folder)
        return self.snapshot.document(row) or Document(docid, "")

    def evaluate(self, corpus: Corpus, *, split: str = "test", keep: bool = False) -> EvalResult:
        """Exact ranks of a split's queries; `keep` stores the ranks, no text, for the retention chart."""
        asked = load_queries(corpus, split)
        found = rank_queries(self.snapshot.method, asked, known=lambda docid: self.snapshot.live(docid) is not None)
        if not found.query_ranks:
            what = f"has no annotated {split} queries" if not asked else f"has no {split} query whose document is in the index"
            raise DataError(f"the corpus {corpus.name} {what}", path=self.store.folder)
        if keep:
            record(self.store, generation=self.generation, corpus=corpus.name, split=split, query_ranks=found.query_ranks)
        return found

    # Forgetting and going back --------------------------------------------------------------------------------------------

    def delete(self, docids: str | Sequence[str]) -> Manifest:
        """Hide documents."""
        return self._moved(removal.delete(self._writable(), _several(docids)))

    def undelete(self, docids: str | Sequence[str]) -> Manifest:
        """Show hidden documents again."""
        return self._moved(removal.undelete(self._writable(), _several(docids)))

    def purge(self, docids: str | Sequence[str] | None = None) -> Manifest:
        """Erase the bytes of documents, or of all deleted ones, from every generation. What was learned is not unlearned."""
        return self._moved(purge.purge(self._writable(), None if docids is None else _several(docids)))

    def rollback(self, to: int | None = None) -> Manifest:
        """A new generation that equals an earlier one, by default the one before."""
        return self._moved(removal.rollback(self._writable(), to))

    # Telling --------------------------------------------------------------------------------------------------------------

    def log(self) -> list[Manifest]:
        """Every generation, oldest first."""
        return self.store.history()

    def verify(self, *, progress: Progress = silent) -> Verified:
        return verify(self.store, progress=progress)

    def export(self, to: str, folder: str | Path) -> list[str]:
        """Write `faiss`, `beir` or `hf` files into a new folder."""
        return export(self.snapshot, to, Path(folder))

    def _options(self, choices: dict[str, Any]) -> Options:
        if unknown := sorted(set(choices) - OPTIONS):
            raise UsageError(f"no option {unknown[0]!r}; there are {', '.join(sorted(OPTIONS))}")
        return Options(**({"device": self.how["device"]} | choices))

    def _writable(self) -> Store:
        if self.pinned:
            raise UsageError(f"the index was opened at generation {self.generation}: that one is read only")
        return self.store

    def _after(self, report: Report) -> Report:
        self.report, self._snapshot = report, None
        return report

    def _moved(self, manifest: Manifest) -> Manifest:
        self._snapshot = None
        return manifest


def make_method(name: str, preset: str, params: dict[str, Any]) -> PromptDSI:
    """A method from a preset and keywords, refused in words a person can act on."""
    from promptdsi.methods.promptdsi import PRESETS

    if preset not in PRESETS:
        raise UsageError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    kind = kind_of(name)
    known = {field.name for field in fields(kind) if field.init}
    if unknown := sorted(set(params) - known):
        hint = removal.close_to(unknown[0], known) or f"; there are {', '.join(sorted(known))}"
        raise UsageError(f"{name} has no parameter {unknown[0]!r}{hint}")
    keywords = PRESETS[preset] | params
    for field in fields(kind):
        if field.name in keywords:
            keywords[field.name] = _fitting(field, keywords[field.name])
    if name == "rows" and keywords.get("prompts", "none") != "none":
        raise UsageError("the method rows has no prompts; use --method promptdsi with --prompts")
    return kind(**keywords)


def _refuse(given: dict[str, Any], names: tuple[str, ...], what: str) -> None:
    if wrong := [name for name in names if name in given]:
        raise UsageError(f"{what} has no option {wrong[0]!r}")


def _fitting(field: Field[Any], value: Any) -> Any:
    """A value of the kind the parameter has by default: a number for a number, words for words."""
    usual = field.default_factory() if field.default_factory is not MISSING else field.default
    if isinstance(usual, float) and type(value) is int:
        return float(value)
    if isinstance(usual, tuple) and isinstance(value, list):
        return tuple(value)
    if type(value) is not type(usual):
        kinds = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", tuple: "a list", dict: "a table"}
        raise UsageError(f"{field.name}={value!r}: expected {kinds[type(usual)]}, such as {usual!r}")
    return value


def _several(docids: str | Sequence[str]) -> list[str]:
    found = [docids] if isinstance(docids, str) else list(docids)
    if not found or "" in found:
        raise UsageError("no docid was given")
    return found
