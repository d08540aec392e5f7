"""Drift: how far the results of old queries moved, on the probe queries an owner chose to keep. Learning never comes here."""

from __future__ import annotations

from promptdsi.evaluation.evaluate import EvalQuery, rank_queries
from promptdsi.evaluation.metrics import values
from promptdsi.index.lists import get_list
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import Drift
from promptdsi.index.snapshot import method_of
from promptdsi.index.store import Store
from promptdsi.methods.promptdsi import PromptDSI


def probes_of(store: Store, manifest: Manifest, *, without: str | None = None) -> list[EvalQuery]:
    """Every probe of a generation, of all corpora or of all but one."""
    found = []
    for entry in manifest.corpora:
        if entry.probes and entry.name != without:
            store.blobs.check(entry.probes, manifest.sizes[entry.probes])
            for place, one in enumerate(get_list(store, entry.probes)):
                found.append(EvalQuery(f"{entry.name} {place}", one["text"], dict.fromkeys(one["docids"], 1.0)))
    return found


def measure_drift(store: Store, parent: Manifest, after: PromptDSI, *, device: str, without: str | None = None) -> Drift | None:
    """Hits@10 on the probes as the index is and as it would become; None where there are none."""
    probes = probes_of(store, parent, without=without)
    before = method_of(store, parent, device=device) if probes else after
    shared = set(_living(before)) & set(_living(after))
    asked = [one for one in probes if not shared.isdisjoint(one.relevant)]
    if not asked:
        return None
    old, new = (rank_queries(method, asked, in_index=shared.__contains__) for method in (before, after))
    hits = [float(values("Hits@10", one.query_ranks).mean()) for one in (old, new)]
    return Drift(hits[0], hits[1], len(asked))


def _living(method: PromptDSI) -> list[str]:
    rows = method.model_.rows
    return [docid for docid, row in rows.row_of.items() if row not in rows.deleted]
