"""The plain records an `Index` takes and returns, and its exceptions. Nothing here opens a file or computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from promptdsi.errors import PromptDSIError

MOST_CONDITIONS = 20  # of a search, on metadata


class SearchRequest(NamedTuple):
    """One query of a batch and its options."""

    query: str
    k: int = 10
    explain: bool = False
    min_confidence: float = 0.0  # hits below it are left out
    where: tuple[str, ...] = ()  # conditions that hits must meet (`index/filters.py`)


class Neighbor(NamedTuple):
    """A document whose row points in nearly the same direction as another's, with the cosine of the two rows."""

    docid: str
    title: str
    similarity: float
    corpus: str


class Why(NamedTuple):
    """Why a document has its rank.

    `learned` is what the document's row adds to its score and `words` what each word it shares with the query adds; `rank_by_rows` and
    `rank_by_words` are its ranks by either alone. `prompt` is the number of the prompt the query selected, `similarity` the cosine of
    its key, `topic` the words of that prompt's topic; `rank_without` and `score_without` are the document's by rows alone without any
    prompt; `query` is the stored training query of this document that is most similar to the search query; `newer` lists the first
    documents of later generations that rank before it and `newer_count` counts all; `neighbors` are the documents with the most
    similar rows.
    """

    learned: float
    words: list[tuple[str, float]]
    rank_by_rows: int
    rank_by_words: int | None
    prompt: int | None
    similarity: float | None
    topic: list[str]
    rank_without: int
    score_without: float
    query: str | None
    query_similarity: float | None
    newer: list[str]
    newer_count: int
    neighbors: list[Neighbor]

    def to_dict(self) -> dict[str, Any]:
        return self._asdict() | {"neighbors": [neighbor._asdict() for neighbor in self.neighbors]}


class Hit(NamedTuple):
    """One retrieved document. `corpus` is the corpus it arrived with, `since` the generation it arrived in.

    `confidence` is the probability that it is right, None where the index was not calibrated. `passage` is where the part of its text that
    scored begins and ends, None where the document is one passage; `heading` what that part stands under, `page` the page it is on.
    """

    rank: int
    docid: str
    score: float
    confidence: float | None
    title: str
    snippet: str
    passage: tuple[int, int] | None
    heading: str
    page: int | None
    corpus: str
    since: int
    why: Why | None = None

    def to_dict(self) -> dict[str, Any]:
        fields = self._asdict()
        why = fields.pop("why")
        return fields | ({"why": why.to_dict()} if why else {})


Hits = list[Hit]


class SearchResult(NamedTuple):
    """The hits of one query; `truncated`: it is longer than the model reads; not `certain`: they are only the nearest there is."""

    hits: list[Hit]
    truncated: bool
    certain: bool = True


class SearchStopped(Exception):
    """The `stop` callback of `search_batch` returned true."""


class NoIndex(PromptDSIError):
    """There is no index where one was expected."""


class Busy(PromptDSIError):
    """Another process is writing to the index."""


class NothingToPurge(PromptDSIError):
    """Every deleted document has been purged before."""


class WorkEstimate(NamedTuple):
    """What create, add or tune is about to do; passed to `on_start`."""

    documents: int
    queries: int
    generated: int  # of the queries, those generated from the documents
    truncated: int  # documents longer than the model reads, estimated
    seconds: float = 0.0
    bytes: int = 0
    efforts: tuple[tuple[str, float], ...] = ()  # of create: the seconds of each level of effort
    searchable: bool = False  # whether the index answers already, and this makes it better


OnStart = Callable[[WorkEstimate], None]


@dataclass(frozen=True)
class Drift:
    """Hits@10 on the probe queries of earlier corpora, before and after, and how far it fell."""

    before: float
    after: float
    n: int
    fall: float


@dataclass(frozen=True)
class Report:
    """What create, add or tune did to the index."""

    generation: int
    kind: str
    corpus: str
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    queries: int = 0
    truncated: int = 0  # documents, or passages, longer than the model reads
    truncated_queries: int = 0
    fast: bool = False
    tunable: bool = True  # whether the index stores the text that `tune` needs
    seconds: float = 0.0
    dev_hits10: float | None = None
    dev_queries: int = 0
    unfindable: list[str] = field(default_factory=list)  # of those examined
    examined: int = 0
    unexamined: int = 0
    drift: Drift | None = None
    probes: int = 0
    corrections_lost: int = 0  # documents that had learned corrections, and were replaced
    merged: int = 0  # small corpora that were then merged, in the generation after it
    not_merged: str = ""  # why they could not be, although enough had gathered


@dataclass(frozen=True)
class SyncReport:
    """What differs between folders and an index, by docid, and the generation in which it no longer does."""

    generation: int
    added: list[str]
    updated: list[str]
    deleted: list[str]
    unchanged: int
    seconds: float = 0.0
    drift: Drift | None = None
    corrections_lost: int = 0  # documents that had learned corrections, and were replaced
    merged: int = 0  # small corpora that were then merged, in the generation after it
    not_merged: str = ""  # why they could not be, although enough had gathered


class Taught(NamedTuple):
    """A correction, and the rank of its document for its query before and after."""

    query: str
    docid: str
    before: int
    after: int


@dataclass(frozen=True)
class TeachReport:
    """What corrections did: the ranks they changed, and by how much Hits@10 on the stored probe queries fell."""

    generation: int
    taught: list[Taught]
    probes: int = 0
    fall: float = 0.0
    merged: int = 0  # small corpora that were then merged, in the generation after it
    not_merged: str = ""  # why they could not be, although enough had gathered


class Location(NamedTuple):
    """Where a document stands in an index."""

    corpus: str
    since: int
    deleted: bool


class CorpusSummary(NamedTuple):
    """A corpus of an index; `documents` counts those that can be retrieved."""

    corpus: str
    documents: int
    since: int
    trained: bool
    probes: bool
    queries: bool


class FolderSummary(NamedTuple):
    """A folder that documents of an index came from, and the generation that last brought the index in step with it.

    `prefix` stands before the paths in the folder, to make docids.
    """

    folder: str
    prefix: str
    documents: int
    generation: int
    time: str


class IndexSummary(NamedTuple):
    """What a generation contains, from its manifest alone."""

    generation: int
    documents: int
    method: str
    prompts: str
    backbone: str
    width: int
    max_tokens: int
    store: str
    format: int
    params: dict[str, Any]
    corpora: list[CorpusSummary]


class DiskUsage(NamedTuple):
    """The folder of an index: its size, documents that are deleted but not purged, and what an interrupted writer left."""

    bytes: int
    deleted: int
    leftovers: int
    purge_unfinished: bool


class PruneReport(NamedTuple):
    """What a prune did, or would do: generations dropped and left, bytes of files that no other needs, and corpora merged."""

    generation: int
    pruned: list[int]
    left: list[int]
    bytes: int
    merged: int = 0


class BackupReport(NamedTuple):
    """What a backup holds, and the files and bytes that had to be copied for it."""

    generation: int
    copied: int
    copied_bytes: int
    blobs: int
    bytes: int


class EvalRecord(NamedTuple):
    """The best rank of each query of one recorded evaluation; no text."""

    generation: int
    corpus: str
    split: str
    ranks: list[int]


class Verification(NamedTuple):
    """How much was checked, and one sentence for each problem; `checks` says what else was checked of a stranger's index."""

    generations: int
    blobs: int
    bytes: int
    problems: list[str]
    checks: list[str] = []  # noqa: RUF012  # never changed
