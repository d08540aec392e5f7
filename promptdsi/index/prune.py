"""Prune: old generations are dropped, and the blobs that only they need. That they existed, how and when, stays in the log.

1. A new generation lists the ones that go; it is stored against none of them. From here on the prune will be completed, by this process
   or by the next writer.
2. Generations that stay and were stored against one that goes are written anew (`Store.finish`).
3. Of each that goes only number, kind, time and counts stay. Then the blobs that none needs any more are leftovers, and are removed.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from promptdsi.errors import DataError, UsageError
from promptdsi.index.delete import before_change
from promptdsi.index.manifest import Manifest
from promptdsi.index.merge_corpora import merge_corpora, mergeable
from promptdsi.index.results import PruneReport
from promptdsi.index.store import Store
from promptdsi.index.tags import read_tags
from promptdsi.progress import Progress, silent


def prune(
    store: Store,
    *,
    keep: int | None = None,
    older_than: float | None = None,
    merge: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> PruneReport:
    """Drop generations that are neither among the newest `keep` nor younger than `older_than` days; with `merge` also merge corpora.

    The current generation stays, tagged ones, and the one that a rollback leads to.
    """
    if keep is None and older_than is None and not merge:
        raise UsageError("say what to prune: --keep N, --older-than DAYS, or --merge")
    if (keep is not None and keep < 1) or (older_than is not None and not 0 <= older_than < 1e6):
        raise UsageError("--keep needs a number of at least 1, --older-than a number of days")
    if dry_run:
        return _plan(store, store.history(), keep, older_than, merge=merge)
    with store.writing():
        parent = store.ready(lambda manifest: set())
        history = store.history()
        report = _plan(store, history, keep, older_than, merge=merge)
        if not report.pruned and not report.merged:
            return report
        event = {"generations": len(report.pruned)} | ({"merged": report.merged} if report.merged else {})
        manifest = parent.next("prune", event=event, pruned=tuple(report.pruned))
        if report.merged:
            corpora = merge_corpora(store, parent, mergeable(parent), since=manifest.number, progress=progress)
            manifest = parent.next("prune", event=event, pruned=tuple(report.pruned), corpora=corpora)
        store.commit(manifest, others=[state for state in history if state.number in report.left])
        with progress("pruning generations", total=len(report.pruned), unit="generations") as advance:
            store.finish(store.manifest())
            advance(len(report.pruned))
        store.clean()
        return report._replace(generation=manifest.number, left=[*report.left, manifest.number])


def _plan(store: Store, history: Sequence[Manifest], keep: int | None, older_than: float | None, *, merge: bool) -> PruneReport:
    """What a prune would do; nothing is written."""
    current, left = history[-1], _staying(store, history, keep, older_than)
    pruned = [manifest for manifest in history if manifest.number not in left]
    needed = set[str]().union(*(manifest.blobs() for manifest in history if manifest.number in left))
    freed = set[str]().union(*(manifest.blobs() for manifest in pruned)) - needed
    merged = sum(map(len, mergeable(current))) if merge else 0
    return PruneReport(
        current.number, [manifest.number for manifest in pruned], sorted(left), sum(current.sizes[name] for name in freed), merged
    )


def _staying(store: Store, history: Sequence[Manifest], keep: int | None, older_than: float | None) -> set[int]:
    numbers = [manifest.number for manifest in history]
    if keep is None and older_than is None:
        return set(numbers)
    staying = {numbers[-1], *read_tags(store).values()} | ({before} if (before := before_change(store, numbers[-1])) else set())
    staying |= set(numbers[-keep:]) if keep is not None else set()
    if older_than is not None:
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=older_than)
        staying |= {manifest.number for manifest in history if _time(store, manifest) >= limit}
    return staying.intersection(numbers)


def _time(store: Store, manifest: Manifest) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(manifest.time).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise DataError(f"has no time that we read: {manifest.time!r:.60}", path=store.manifest_path(manifest.number)) from None
