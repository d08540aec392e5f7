"""What our runs say of each table and figure, as it stands in docs/REPRODUCTION.md; empty where nothing has run."""

from __future__ import annotations

from collections.abc import Sequence

from promptdsi.bench.plan import Setting
from promptdsi.bench.system_results import SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import NONE, Column, Table, row, score
from promptdsi.methods.dsi_method import DSIMethod

from . import figure_claims
from .paper_claims import D0, NEW
from .published import MS_MARCO, NQ, Published
from .reports import layers, passes, utilisation
from .reports.curves import after
from .shared import interval, size, step_by_step

KEY_SYSTEMS = ("IncDSI", "S++", "Topic")  # those whose figures stand in the overview
HITS_ON_D0, HITS_ON_NEW = 0, 2  # positions in a published line


def scores(results: SystemResults, setting: Setting) -> str:
    """D0 and A_T of the key systems, with intervals."""
    texts = []
    for system in results.of(setting):
        d0, new = system.estimate(D0), system.estimate(NEW)
        if system.label in KEY_SYSTEMS and d0 is not None and new is not None:
            values = [f"{100 * estimate.value:.1f} ({interval(estimate)})" for estimate in (d0, new)]
            texts.append(f"{system.label} {values[0]} / {values[1]}")
    return "D0 / A_T H@10: " + "; ".join(texts) if texts else ""


def sizes(results: SystemResults, setting: Setting) -> str:
    record = next(iter(results.records(setting)), None)
    if record is None:
        return ""
    pseudo = setting.d0.params.get("pseudo_queries", DSIMethod.pseudo_queries)
    counts = [f"{corpus.corpus.upper()} {corpus.documents:,} documents, {corpus.test:,} test queries" for corpus in record.data.corpora]
    return f"{', '.join(counts)}; up to {pseudo} spans of each document as pseudo-queries"


def ends(results: SystemResults, setting: Setting) -> str:
    """LA_T and F_T of the key systems."""
    texts = []
    for system in results.of(setting):
        if system.label in KEY_SYSTEMS and step_by_step(system):
            entries = [score(system.value(after(name, "Hits@10", system.runs[0].last))) for name in ("LA_t", "F_t")]
            texts.append(f"{system.label} {' / '.join(entry.text for entry in entries if entry)}")
    return "LA_T / F_T H@10: " + "; ".join(texts) if texts else ""


def two_passes(results: SystemResults, setting: Setting) -> str:
    """Two passes from the runs; how much faster one is from `make bench`."""
    faster, texts = figure_claims.speed_ups(), []
    for single, two in passes.pairs(results.of(setting)):
        entries = [score(two.value(measure)) for measure in (D0, NEW)]
        speed = faster[single.label]
        if all(entries):
            texts.append(f"{single.label} {' / '.join(entry.text for entry in entries if entry)}, {speed[0]:.1f}× / {speed[1]:.1f}×")
    return "two passes D0 / A_T H@10, speed-up of one in learning / search (bench-passes.md): " + "; ".join(texts) if texts else ""


def mined(results: SystemResults, setting: Setting) -> str:
    counts = [record.topics.counts for system in results.of(setting) for record in system.records if record.topics]
    return figure_claims.in_words(counts[0]) if counts else ""


def in_use(results: SystemResults, setting: Setting) -> str:
    texts = []
    for system in utilisation.as_in_the_paper(results.of(setting)):
        if system.records and system.records[0].prompt_counts:
            uses = [utilisation.use(utilisation.counts_of(record).sum(axis=0)) for record in system.records]
            share, frequent = (sum(shares) / len(uses) for shares in zip(*((use.utilisation, use.frequent) for use in uses), strict=True))
            texts.append(f"{system.label} {100 * share:.0f} % of its pool, {100 * frequent:.0f} % frequent")
    return "; ".join(texts)


def layer(results: SystemResults, setting: Setting) -> str:
    chosen = {label: layers.choose(tried) for label, tried in layers.by_system(results.of(setting)).items()}
    texts = [f"{label} {', '.join(map(str, layers.layers_of(system)))}" for label, system in chosen.items() if system is not None]
    return "the criteria select layer: " + "; ".join(texts) if texts else ""


def bytes_stored(results: SystemResults, setting: Setting) -> str:
    systems = [system for system in results.of(setting) if system.label in KEY_SYSTEMS]
    stored = [(system.label, system.mean_of(lambda record: record.extra_bytes)) for system in systems]
    return ", ".join(f"{label} {size(extra)}" for label, extra in stored if extra is not None)


def full_table(tables: dict[str, Published], systems: Sequence[SystemResult]) -> str:
    """Tables 2 and 3: the paper's systems in its order, then those only we have."""
    ran = {system.label: system for system in systems}
    theirs = list(tables[NQ])
    ours = [label for label in ran if label not in theirs]
    rows = [
        row(label, *_printed(tables, label), *_measured(ran.get(label)), group=group)
        for group, labels in (("In the paper", theirs), ("Only here", ours))
        for label in labels
    ]
    columns = [Column("system", left=True)]
    columns += [Column(name, data) for data in (f"{NQ}, paper:", f"{MS_MARCO}, paper:") for name in ("D0", "A_5")]
    columns += [Column(name, "ours:") for name in ("D0", "A_T")]
    head = (
        f"Hits@10 / MRR@10 of every system after the last corpus; ours with a 95 % interval of Hits@10. {NONE} is what the paper does not "
        "print, and what is not planned or has not run here."
    )
    return f"{head}\n\n{Table('', columns, rows).markdown().strip()}"


def _printed(tables: dict[str, Published], label: str) -> list[str | None]:
    printed = [tables[data].get(label) for data in (NQ, MS_MARCO)]
    return [None if line is None else _pair(*line[first : first + 2]) for line in printed for first in (HITS_ON_D0, HITS_ON_NEW)]


def _pair(*figures: float | None) -> str:
    return " / ".join(NONE if figure is None else f"{figure:.1f}" for figure in figures)


def _measured(system: SystemResult | None) -> list[str | None]:
    texts: list[str | None] = []
    for hits, reciprocal in ((D0, on_d0("MRR@10")), (NEW, on_new("MRR@10"))):
        estimate, mrr = (None, None) if system is None else (system.estimate(hits), system.value(reciprocal))
        texts.append(None if estimate is None or mrr is None else f"{100 * estimate.value:.1f} ({interval(estimate)}) / {100 * mrr:.1f}")
    return texts
