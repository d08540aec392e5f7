"""The options of the verbs of an `Index`, by name and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from promptdsi.corpus.corpus import ReadNotes
from promptdsi.index.results import OnStart, SyncReport
from promptdsi.progress import Progress


class SearchOptions(TypedDict, total=False):
    """The options of a search: hits wanted, whether they are explained, the least confidence, and conditions on metadata."""

    k: int
    explain: bool
    min_confidence: float
    where: str | Sequence[str] | Mapping[str, Any]


class TuneOptions(TypedDict, total=False):
    """Options of every training: the greatest fall of Hits@10 on stored probes that is accepted, the seed, and callbacks."""

    max_drift: float | None
    seed: int | None
    progress: Progress
    on_start: OnStart | None


class AddOptions(TuneOptions, total=False):
    """Options of adding a corpus: its name, whether it is left to `tune`, changed documents replaced, and what is stored of queries."""

    name: str | None
    fast: bool
    update: bool
    keep_probes: int
    keep_queries: bool


class CreateOptions(TypedDict, total=False):
    """Options of creating an index that no parameter of the method is: the corpus's name, what is stored, and callbacks."""

    name: str | None
    store: str
    keep_probes: int
    keep_queries: bool
    progress: Progress
    on_start: OnStart | None


class PruneOptions(TypedDict, total=False):
    """Options of pruning: the newest generations that stay, the age in days below which they stay, and whether small corpora are merged."""

    keep: int | None
    older_than: float | None
    merge: bool
    dry_run: bool
    progress: Progress


class SyncOptions(TuneOptions, total=False):
    """Options of bringing an index in step with folders; `notes` says how files are read, `on_changes` is called before any change."""

    dry_run: bool
    fast: bool
    notes: ReadNotes
    on_changes: Callable[[SyncReport], None]
