"""A manifest: the description of one generation, as JSON that carries its own checksum."""

from __future__ import annotations

import bisect
import contextlib
import datetime
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from promptdsi.aliases import MANIFEST, renamed
from promptdsi.checks import check_depth, parse_json
from promptdsi.errors import DataError
from promptdsi.files import read_plain
from promptdsi.index.file_checks import MOST_MANIFEST, MOST_MANIFEST_MEMORY, check_manifest
from promptdsi.index.results import CorpusSummary, FolderSummary, IndexSummary
from promptdsi.methods.options import current_params

FORMAT = 3  # 2 had no passages and no words; 1 had other names too, which `promptdsi.aliases` lists
HEAD, TAIL = b'{"content":', len(b',"sha256":"') + 64 + len(b'"}\n')
INCONSISTENT: tuple[type[Exception], ...] = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)  # by wrong files
PARTS = ("rows", "ids", "words", "documents", "probes", "queries")


@dataclass(frozen=True)
class Entry:
    """A corpus in a generation, or a part of a large one: its blobs, in the order of its rows."""

    name: str
    since: int  # the generation it arrived in
    count: int  # documents, deleted ones included
    rows: str
    ids: str
    passages: int = 0  # rows, where long documents have several; 0: one for each document
    words: str | None = None  # None where words do not count
    documents: str | None = None  # None where nothing of the documents is stored
    probes: str | None = None
    queries: str | None = None
    fast: bool = False  # added without training
    source: str | None = None  # the folder of files it was read from
    prefix: str = ""  # what was put before paths in that folder, to make docids
    part: int = 0  # a corpus of many passages is several entries, one after the other: 0, 1, 2, …

    @property
    def row_count(self) -> int:
        return self.passages or self.count

    def blobs(self) -> Iterator[str]:
        yield from (name for part in PARTS if (name := getattr(self, part)) is not None)


@dataclass(frozen=True)
class Manifest:
    """One generation. `metadata` is what the method learned beside weights; `event` describes what made this generation, in counts."""

    number: int
    parent: int | None
    kind: str
    time: str
    method: str
    params: dict[str, Any]
    config: dict[str, Any]
    encoder: str
    tokenizer: str
    store: str
    metadata: dict[str, Any]
    prompts: dict[str, str]  # name of a tensor → the blob that holds it
    corpora: tuple[Entry, ...]
    statistics: str | None = None  # the blob by which words are weighted
    tombstones: tuple[int, ...] = ()  # numbers of deleted documents, counted over all corpora
    event: dict[str, Any] = field(default_factory=dict)
    erase: dict[str, str] = field(default_factory=dict)  # blobs this purge removes from all generations → their replacements
    sizes: dict[str, int] = field(default_factory=dict)
    retired: tuple[str, ...] = ()  # blobs that only earlier generations need
    format: int = FORMAT
    written_by: str = ""

    def blobs(self) -> set[str]:
        """Every blob this generation needs."""
        names = {self.encoder, self.tokenizer, *self.prompts.values(), *(name for entry in self.corpora for name in entry.blobs())}
        return names | ({self.statistics} if self.statistics else set())

    @property
    def documents(self) -> int:
        """Documents that can be retrieved."""
        return sum(entry.count for entry in self.corpora) - len(self.tombstones)

    @property
    def trains_model(self) -> bool:
        """Whether the encoder or prompts learn from documents, not rows alone."""
        return bool(self.prompts) or self.params.get("fit", {}).get("learn", "everything") == "everything"

    def parts(self) -> list[range]:
        """The numbers of the entries of each corpus: one, or several of a large corpus."""
        firsts = [number for number, entry in enumerate(self.corpora) if not entry.part]
        return [range(*bounds) for bounds in itertools.pairwise([*firsts, len(self.corpora)])]

    def firsts(self) -> list[int]:
        """The document number at which each corpus begins."""
        return list(itertools.accumulate((entry.count for entry in self.corpora[:-1]), initial=0))[: len(self.corpora)]

    def deleted_positions(self) -> list[list[int]]:
        """The positions of each corpus's deleted documents."""
        positions = []
        for entry, first in zip(self.corpora, self.firsts(), strict=True):
            low, high = (bisect.bisect_left(self.tombstones, document) for document in (first, first + entry.count))
            positions.append([document - first for document in self.tombstones[low:high]])
        return positions

    def document_names(self, number: int, docids: Sequence[str | None], passages: Sequence[int], shape: Sequence[int]) -> list[str]:
        """The docids of a corpus, checked against the shape of its rows. A purged document gets a name no query can ask for."""
        entry = self.corpora[number]
        if tuple(shape) != (entry.row_count, self.config["width"]) or len(docids) != entry.count or sum(passages) != entry.row_count:
            raise ValueError(f"other rows than generation {self.number} says")
        first = self.firsts()[number]
        return [docid or f"\0{first + position}" for position, docid in enumerate(docids)]

    @contextlib.contextmanager
    def as_data_error(self, folder: Path, *others: type[Exception]) -> Iterator[None]:
        """Intact files that do not fit together are damage like any other; `others` are exceptions that only they can cause here."""
        causes = (*INCONSISTENT, *others)
        try:
            yield
        except causes as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise DataError(f"generation {self.number} is inconsistent ({reason}); run `promptdsi verify`", path=folder) from error

    def renamed(self, new: dict[str, str]) -> Manifest:
        """The same generation with some blobs replaced: old name → new name."""
        corpora = []
        for entry in self.corpora:
            parts = {part: getattr(entry, part) for part in PARTS}
            corpora.append(replace(entry, **{part: new.get(name, name) for part, name in parts.items() if name is not None}))
        statistics = new.get(self.statistics, self.statistics) if self.statistics else None
        retired = tuple(sorted({new.get(name, name) for name in self.retired}))
        return replace(self, corpora=tuple(corpora), statistics=statistics, retired=retired)

    def summary(self) -> IndexSummary:
        """What this generation contains, for people and programs."""
        live = [entry.count - len(deleted) for entry, deleted in zip(self.corpora, self.deleted_positions(), strict=True)]
        corpora = []
        for part in self.parts():
            entries, count = self.corpora[part.start : part.stop], sum(live[part.start : part.stop])
            probes, queries = (any(getattr(entry, kind) for entry in entries) for kind in ("probes", "queries"))
            corpora.append(CorpusSummary(entries[0].name, count, entries[0].since, not entries[0].fast, probes, queries))
        return IndexSummary(
            generation=self.number,
            documents=self.documents,
            method=self.method,
            prompts=self.params.get("prompts", "none"),
            backbone=self.params.get("backbone", ""),
            width=self.config["width"],
            max_tokens=self.params["encoding"]["max_tokens"],
            store=self.store,
            format=self.format,
            params=self.params,
            corpora=corpora,
        )

    @staticmethod
    def folders(history: Sequence[Manifest]) -> list[FolderSummary]:
        """The folders that documents of the newest generation came from. A sync that changed nothing made no generation."""
        newest, synced = history[-1], dict[str, Manifest]()
        state: Manifest | None = newest
        while state is not None:
            arrived = [entry.source for entry in state.corpora if entry.since == state.number and entry.source and state.kind != "teach"]
            for folder in state.event.get("folders", arrived):
                synced.setdefault(folder, state)
            before = state.event["to"] if state.kind == "rollback" else state.parent  # what was rolled back is undone
            state = history[before - 1] if before else None
        documents, prefixes = Counter[str](), dict[str, str]()
        for entry, deleted in zip(newest.corpora, newest.deleted_positions(), strict=True):
            if entry.source in synced:
                documents[entry.source] += entry.count - len(deleted)
                prefixes[entry.source] = entry.prefix
        return [
            FolderSummary(folder, prefix, documents[folder], synced[folder].number, synced[folder].time)
            for folder, prefix in prefixes.items()
        ]

    def follows(self, path: Path) -> Entry | None:
        """A corpus that came from a folder which a path lies in, equals or contains, and of which documents can be retrieved."""
        for entry, deleted in zip(self.corpora, self.deleted_positions(), strict=True):
            if entry.source is not None and len(deleted) < entry.count:
                folder = Path(entry.source)
                if path.is_relative_to(folder) or folder.is_relative_to(path):
                    return entry
        return None

    def next(self, kind: str, **changes: Any) -> Manifest:
        """The generation after this one, equal to it apart from `changes`."""
        fresh: dict[str, Any] = {"event": {}, "erase": {}}
        return replace(self, number=self.number + 1, parent=self.number, kind=kind, time=now(), **(fresh | changes))

    def to_bytes(self) -> bytes:
        return sealed(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        content = unsealed(path)
        try:
            if content.get("format") == 1 and isinstance(params := content.get("params"), dict):
                content = renamed(content, MANIFEST) | {"params": current_params(params)}
            check_manifest(content)
        except (ValueError, TypeError) as error:
            raise DataError(f"is no manifest: {str(error).strip()}; run `promptdsi verify`", path=path) from None
        corpora = tuple(Entry(**entry) for entry in content.pop("corpora"))
        lists = {name: tuple(content[name]) for name in ("tombstones", "retired")}
        return cls(**content | lists | {"corpora": corpora})


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def sealed(value: dict[str, Any]) -> bytes:
    """JSON whose last field is the sha256 of the bytes before it.

    Examples
    --------
    >>> sealed({"ranks": [1]})[:25]
    b'{"content":{"ranks":[1]},'
    """
    body = HEAD + json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")
    return body + b',"sha256":"%s"}\n' % hashlib.sha256(body).hexdigest().encode()


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a sealed file; DataError if a byte of it has changed or a newer release wrote it."""
    try:
        raw = read_plain(path, MOST_MANIFEST)
    except FileNotFoundError:
        raise DataError("is missing; restore it from a copy", path=path) from None
    body, seal = raw[:-TAIL], raw[-TAIL:]
    try:
        content = parse_json(raw, most=MOST_MANIFEST_MEMORY)["content"]
        check_depth(content)
        newer = type(content.get("format", 0)) is int and content.get("format", 0) > FORMAT
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError("is damaged (not readable as JSON); restore it from a copy", path=path) from None
    if newer:
        release = str(content.get("written_by"))[:50]
        raise DataError(
            f"was written by promptdsi {release} in format {content['format']}, "
            f"this release reads up to format {FORMAT}: install promptdsi {release} or newer",
            path=path,
        )
    if not body.startswith(HEAD) or seal != b',"sha256":"%s"}\n' % hashlib.sha256(body).hexdigest().encode():
        raise DataError("is damaged (sha256 differs); restore it from a copy", path=path)
    return dict(content)
