"""What the cells say of each table and figure, as it stands in the overview of docs/REPRODUCTION.md; empty where nothing has run."""

from __future__ import annotations

import claims

from promptdsi.bench.expectations import D0, NEW
from promptdsi.bench.findings import Findings
from promptdsi.bench.plan import Setting
from promptdsi.bench.reports import layers, passes, utilisation
from promptdsi.bench.reports.curves import after
from promptdsi.bench.tables import between, score, size
from promptdsi.methods.dsi import DSIMethod

KEY = ("IncDSI", "S++", "Topic")  # whose figures stand in the overview


def scores(findings: Findings, setting: Setting) -> str:
    """D0 and A_T of the key systems, with intervals."""
    shown = []
    for one in findings.of(setting):
        d0, new = one.estimate(D0), one.estimate(NEW)
        if one.label in KEY and d0 is not None and new is not None:
            values = [f"{100 * each.value:.1f} ({between(each)})" for each in (d0, new)]
            shown.append(f"{one.label} {values[0]} / {values[1]}")
    return "D0 / A_T H@10: " + "; ".join(shown) if shown else ""


def sizes(findings: Findings, setting: Setting) -> str:
    record = next(iter(findings.records(setting)), None)
    if record is None:
        return ""
    stream = [corpus for corpus in record["data"]["sizes"] if corpus["corpus"] != "tune"]
    made = setting.d0.params.get("pseudo_queries", DSIMethod.pseudo_queries)
    said = [f"{one['corpus'].upper()} {one['documents']:,} documents, {one['test']:,} test queries" for one in stream]
    return f"{', '.join(said)}; up to {made} spans of each document as pseudo-queries"


def ends(findings: Findings, setting: Setting) -> str:
    """LA_T and F_T of the key systems."""
    shown = []
    for one in findings.of(setting):
        if one.label in KEY and one.step_by_step:
            found = [score(one.value(after(name, "Hits@10", one.runs[0].last))) for name in ("LA_t", "F_t")]
            shown.append(f"{one.label} {' / '.join(each.text for each in found if each)}")
    return "LA_T / F_T H@10: " + "; ".join(shown) if shown else ""


def two_passes(findings: Findings, setting: Setting) -> str:
    """Figures of two passes from the cells; how much faster one is from `make bench`."""
    faster, shown = claims.speed_ups(), []
    for one, two in passes.pairs(findings.of(setting)):
        found = [score(two.value(measure)) for measure in (D0, NEW)]
        speed = faster[one.label]
        if all(found):
            shown.append(f"{one.label} {' / '.join(each.text for each in found if each)}, {speed[0]:.1f}× / {speed[1]:.1f}×")
    return "two passes D0 / A_T H@10, speed-up of one in learning / search (bench-passes.md): " + "; ".join(shown) if shown else ""


def mined(findings: Findings, setting: Setting) -> str:
    found = [record["topics"]["counts"] for one in findings.of(setting) for record in one.records if record.get("topics")]
    return claims.in_words(found[0]) if found else ""


def in_use(findings: Findings, setting: Setting) -> str:
    shown = []
    for one in utilisation.as_in_the_paper(findings.of(setting)):
        if one.records and one.records[0].get("chosen"):
            used = [utilisation.use(utilisation.counts_of(record).sum(axis=0)) for record in one.records]
            share, frequent = (sum(each) / len(used) for each in zip(*((each.utilisation, each.frequent) for each in used), strict=True))
            shown.append(f"{one.label} {100 * share:.0f} % of its pool, {100 * frequent:.0f} % frequent")
    return "; ".join(shown)


def layer(findings: Findings, setting: Setting) -> str:
    chosen = {label: layers.choose(tried) for label, tried in layers.by_system(findings.of(setting)).items()}
    said = [f"{label} {', '.join(map(str, layers.layers_of(one)))}" for label, one in chosen.items() if one is not None]
    return "the criteria choose layer: " + "; ".join(said) if said else ""


def bytes_kept(findings: Findings, setting: Setting) -> str:
    kept = [(one.label, one.each(lambda record: record["extra_bytes"])) for one in findings.of(setting) if one.label in KEY]
    return ", ".join(f"{label} {size(extra)}" for label, extra in kept if extra is not None)
