"""One generation, opened: what answers queries, the method assembled from the same blobs, and where each row came from.

Learning opens what `check_learned` checks only: encoder, tokenizer, rows, ids, prompts. Documents, probes and kept queries are
reached through other doors, which learning does not use.
"""

from __future__ import annotations

import bisect
import contextlib
import difflib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from promptdsi.corpus.records import Document
from promptdsi.engine.query_encoder import QueryEncoder
from promptdsi.engine.threads import cores
from promptdsi.errors import DataError, UsageError
from promptdsi.index.answering import check_encoder, check_engine, named, open_encoder, open_table
from promptdsi.index.documents import Documents
from promptdsi.index.ids import Ids
from promptdsi.index.lists import get_list
from promptdsi.index.manifest import Entry, Manifest
from promptdsi.index.results import DocumentSample, Location
from promptdsi.index.store import Store
from promptdsi.model.config import EncoderConfig

if TYPE_CHECKING:
    from promptdsi.methods.promptdsi import PromptDSI

OPEN_FILES = 64  # document files held open at a time: an index may have more corpora than a process may have files


class Place(NamedTuple):
    """Where a row stands: its corpus and its place in it."""

    entry: Entry
    number: int  # of the corpus
    place: int


def kind_of(name: str) -> type[PromptDSI]:
    """A method an index can hold: encoder and old rows stay as they are, and nothing but blobs of the index is needed to go on."""
    from promptdsi.methods import methods
    from promptdsi.methods.promptdsi import PromptDSI

    able = [known for known, kind in methods().items() if issubclass(kind, PromptDSI) and kind.rehearsal_free]
    if name not in methods():
        raise UsageError(f"no method {name!r}; an index can hold {' and '.join(able)}")
    if name not in able:
        why = "leave the encoder and all old rows as they are and keep no query or document to learn from again"
        raise UsageError(f"an index cannot hold {name}: only {' and '.join(able)} {why}; promptdsi bench runs the others")
    found = methods()[name]
    assert issubclass(found, PromptDSI)
    return found


def check_learned(store: Store, manifest: Manifest) -> None:
    """Check what learning reads: every blob but documents, probes and queries."""
    names = {manifest.encoder, manifest.tokenizer, *manifest.prompts.values()}
    store.check(manifest, names | {name for entry in manifest.corpora for name in (entry.rows, entry.ids)})


def ids_of(store: Store, manifest: Manifest) -> list[Ids]:
    """Docids and content marks of every corpus."""
    return [store.ids(entry.ids) for entry in manifest.corpora]


def method_of(store: Store, manifest: Manifest, *, device: str = "auto", last: int | None = None) -> PromptDSI:
    """The method of a generation. `last` names a corpus whose rows stand behind all others, so that they can learn."""
    from promptdsi.methods.storage import DocumentBlock, Learned, assemble

    order = [*(number for number in range(len(manifest.corpora)) if number != last), *([] if last is None else [last])]
    ids, firsts = ids_of(store, manifest), manifest.firsts()
    blocks: list[DocumentBlock] = []
    deleted: set[int] = set()
    gone, here = manifest.deleted_positions(), 0
    for number in order:
        entry = manifest.corpora[number]
        rows = store.blobs.tensors(entry.rows)["rows"]
        if tuple(rows.shape) != (entry.count, manifest.config["width"]) or len(ids[number].docids) != entry.count:
            raise DataError(f"holds other rows than generation {manifest.number} says; run `promptdsi verify`", path=store.folder)
        deleted |= {here + place for place in gone[number]}
        here += entry.count
        blocks.append(DocumentBlock(named(ids[number].docids, firsts[number]), rows))
    held = {name: store.blobs.tensors(name) for name in set(manifest.prompts.values())}
    learned = Learned(
        EncoderConfig(**manifest.config),
        store.blobs.tensors(manifest.encoder),
        store.blobs.text(manifest.tokenizer),
        blocks,
        deleted,
        {name: held[blob][name] for name, blob in manifest.prompts.items()},
        manifest.metadata,
        {},
    )
    with belonging(store, manifest):
        return assemble(kind_of(manifest.method), manifest.params | {"device": device, "offline": True}, learned)


@contextlib.contextmanager
def belonging(store: Store, manifest: Manifest) -> Iterator[None]:
    """Whole files that do not belong together are damage like any other."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(
            f"generation {manifest.number} does not hold together ({error}); run `promptdsi verify`", path=store.folder
        ) from error


class Snapshot:
    """A generation opened for searching. Any number of threads may use it; it never writes.

    `verified` names blobs whose checksum was verified before. `engine` is what encodes queries, `threads` how
    many it may use for one.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        *,
        check: bool = True,
        verified: Collection[str] = frozenset(),
        engine: str = "auto",
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        if check:
            store.check(manifest, manifest.blobs() - set(verified))
        threads = threads and min(threads, cores())  # more than cores only wait for each other, and take long to begin
        self.store, self.manifest, self.device, self.threads = store, manifest, device, threads
        self.engine = check_engine(engine, device, manifest)
        with belonging(store, manifest):
            self.table = open_table(store, manifest, threads=threads)
            check_encoder(store, manifest)
        self.firsts = manifest.firsts()
        self._documents: dict[int, Documents] = {}
        self._queries: dict[int, dict[str, list[Any]]] = {}
        self._lock = threading.Lock()

    @cached_property
    def encoder(self) -> QueryEncoder:
        """What makes vectors of queries; built when the first one is asked."""
        with belonging(self.store, self.manifest):
            return open_encoder(self.store, self.manifest, lambda: self.method, engine=self.engine, threads=self.threads)

    @cached_property
    def method(self) -> PromptDSI:
        """The method of this generation, with everything it needs to learn and to be measured. Brings torch with it."""
        return method_of(self.store, self.manifest, device=self.device)

    @property
    def row_of(self) -> dict[str, int]:
        return self.table.row_of

    def live(self, docid: str) -> int | None:
        """The row of a document that can be found."""
        row = self.row_of.get(docid)
        return None if row is None or row in self.table.deleted else row

    def place(self, row: int) -> Place:
        number = bisect.bisect_right(self.firsts, row) - 1
        return Place(self.manifest.corpora[number], number, row - self.firsts[number])

    def document(self, row: int) -> Document | None:
        """What is stored of a row's document: None where nothing is."""
        entry, number, place = self.place(row)
        if entry.documents is None:
            return None
        with self._lock:
            opened = self._documents.pop(number, None) or Documents(self._path(entry.documents, number))
            self._documents[number] = opened  # the last one used is the last to be closed
            if len(self._documents) > OPEN_FILES:
                self._documents.pop(next(iter(self._documents))).close()
            return opened.get(place)

    def get(self, docid: str) -> Document:
        """What is stored of a live document."""
        location, folder = self.locate(docid), self.store.folder
        if location is None:
            hint = close_to(docid, self.row_of)
            raise DataError(f"holds no document {docid!r} in generation {self.manifest.number}{hint}", path=folder)
        if location.deleted:
            raise DataError(f"the document {docid!r} is deleted; `undelete` shows it again", path=folder)
        return self.document(self.row_of[docid]) or Document(docid, "")

    def locate(self, docid: str) -> Location | None:
        """The corpus of a document and whether it is deleted; None where there is no such document."""
        row = self.row_of.get(docid)
        if row is None:
            return None
        entry = self.place(row).entry
        return Location(entry.name, entry.since, row in self.table.deleted)

    def sample(self, limit: int) -> DocumentSample:
        """At most `limit` live documents, evenly spaced, with their rows."""
        rows = [row for row in range(len(self.table)) if row not in self.table.deleted]
        if len(rows) > limit:
            rows = [rows[position] for position in np.linspace(0, len(rows) - 1, limit).astype(int)]
        documents, corpora = [self.document(row) for row in rows], [self.place(row).number for row in rows]
        return DocumentSample([self.table.docids[row] for row in rows], documents, corpora, self.table.vectors(rows))

    def kept_queries(self, number: int) -> dict[str, list[Any]]:
        """The train queries the owner chose to keep of a corpus, by docid."""
        name = self.manifest.corpora[number].queries
        if name and number not in self._queries:
            by_docid: dict[str, list[Any]] = {}
            for one in get_list(self.store, self._path(name, number, "queries").name):
                by_docid.setdefault(one["docid"], []).append(one)
            self._queries[number] = by_docid
        return self._queries.get(number, {})

    def _path(self, name: str, number: int, part: str = "documents") -> Any:
        with contextlib.suppress(DataError):
            return self.store.blobs.path(name)
        # A purge has replaced the blob since this generation was opened; its manifest then leads to the new one. Unless the whole
        # folder was replaced: another index has other weights.
        again = self.store.manifest(self.manifest.number)
        if (again.encoder, again.time) != (self.manifest.encoder, self.manifest.time):
            raise DataError("holds another index since this one was opened; open it again", path=self.store.folder)
        return self.store.blobs.path(getattr(again.corpora[number], part) or name)


def open_snapshot(store: Store, *, at: int | None = None, erase: Mapping[str, str] = MappingProxyType({}), **how: Any) -> Snapshot:
    """Open a generation, as `Snapshot` is told; if another process purges meanwhile, look again.

    `erase` are the blobs a purge that is under way, or was interrupted, removes, and what takes their place.
    """
    manifest = store.manifest(at)
    if manifest.blobs() & erase.keys():
        return Snapshot(store, manifest.renamed(dict(erase)), **how)
    try:
        opened = Snapshot(store, manifest, **how)
    except (DataError, FileNotFoundError):
        again = store.manifest(at)
        if again == manifest:
            raise
        return Snapshot(store, again, **how)
    if at is not None and (again := store.manifest(at)) != manifest:
        return Snapshot(store, again, **how)
    return opened


def live_ids(manifest: Manifest, ids: Sequence[Ids]) -> dict[str, tuple[int, str]]:
    """Row and content mark of each document that can be found, by docid."""
    gone, found, row = set(manifest.tombstones), {}, 0
    for one in ids:
        for place, docid in enumerate(one.docids):
            if docid is not None and row not in gone:
                found[docid] = (row, one.mark(place))
            row += 1
    return found


def close_to(docid: str, known: Collection[str]) -> str:
    """The end of an error message that names a similar docid: one this is a longer path to, or one with a similar spelling."""
    tail = docid.rsplit("/", 1)[-1]
    matches = [tail] if tail in known and tail != docid else []
    if not matches and len(known) <= 5000:  # spelling is compared pair by pair
        matches = difflib.get_close_matches(docid, known, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def make_method(name: str, preset: str, params: Mapping[str, Any]) -> PromptDSI:
    """A method from a preset and parameters: nested, with dotted keys, or under the flat names of earlier releases."""
    from promptdsi.methods.options import current_params, merge_params
    from promptdsi.methods.promptdsi import PRESETS

    if preset not in PRESETS:
        raise UsageError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    method = kind_of(name).from_params(merge_params(PRESETS[preset], current_params(params)))
    if method.retired:
        raise UsageError(f"{name} has no parameter {min(method.retired)!r} any more")
    if name == "rows" and method.prompts != "none":
        raise UsageError("the method rows has no prompts; use --method promptdsi with --prompts")
    return method
