"""What the paper claims, as differences that can be judged: each table and figure by the rules docs/REPRODUCTION.md states.

A difference is turned so that positive is what the paper says, and has a 95 % interval over queries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from promptdsi.evaluation.continual import ROUNDING, Estimate, Figures, Matrix, estimate, over_seeds
from promptdsi.experiments.expectations import AMONG, CONTROL, D0, KEPT, LOST, NEW, WITHOUT_ROWS, continual, frozen_encoder
from promptdsi.experiments.findings import Finding, Measure, on_new
from promptdsi.experiments.reports import layers, memory, passes, utilisation
from promptdsi.experiments.reports.curves import after
from promptdsi.experiments.tables import between, signed, size

HOLDS, FAILS, NOT_SHOWN = "ordering holds", "ordering does not hold", "not shown"
VERIFIED, VERIFIED_IN_PART = "arithmetic verified", "arithmetic verified in part"
SHOWN, NOT_RUN, NOT_PLANNED = "shown, not judged", "not run", "not planned here"
ROUNDED = "rounded"
SHOWN_AT_MOST = 8  # differences written out; of more, the two ends
RESAMPLES = 1000
NEW_MRR = on_new("MRR@10", "A_T M@10")
LEARNED, FORGOT = Measure("LA_T H@10", Matrix.learning, "Hits@10", new=True), Measure("F_T H@10", Matrix.forgetting, "Hits@10", new=True)
WIDTH, NEW_DOCUMENTS = memory.WIDTH, {"NQ320k": 9_874, "MS MARCO 300k": 10_000}
# Table 1 of the paper: documents of D0 to D5. Topics per backbone and data set: captions of Figures 4 and 5.
DOCUMENTS = {"NQ320k": (98_743, 2_000, 2_000, 2_000, 2_000, 1_874), "MS MARCO 300k": (289_424, 2_000, 2_000, 2_000, 2_000, 2_000)}
TOPICS = (
    ("NQ320k", "BERT", 80, "8.8"),
    ("NQ320k", "SBERT", 91, "9.0"),
    ("MS MARCO 300k", "BERT", 182, "10.4"),
    ("MS MARCO 300k", "SBERT", 193, "10.6"),
)
POOLS = (("IncDSI", 0, "7.6", "7.7"), ("L2P, S++", 5 * 21 * WIDTH, "7.6", "7.8"), ("CODA", 10 * 12 * WIDTH, "7.7", "7.8"))


class Claim(NamedTuple):
    text: str
    verdict: str
    evidence: str
    counted: bool = True  # what the paper does not claim itself is shown and not counted


class Gap(NamedTuple):
    """A difference; None while one of the two has not run, and for ever where this scale does not plan one of them."""

    name: str
    found: Estimate | None
    planned: bool = True


Systems = Sequence[Finding | str]  # a label alone is a system this scale does not plan
Rule = Callable[[Sequence[Finding]], list[Claim]]


def judged(text: str, gaps: Iterable[Gap], *, margin: float = 0.0, counted: bool = True) -> Claim:
    """Holds where every interval lies above −margin, does not where one lies below it; not shown otherwise."""
    gaps = list(gaps)
    ran = [(gap.name, gap.found) for gap in gaps if gap.found is not None]
    lacking = [gap.name for gap in gaps if gap.found is None and gap.planned]
    unplanned = [gap.name for gap in gaps if not gap.planned]
    if any(found.high < -margin - ROUNDING for _, found in ran):
        verdict = FAILS
    elif lacking or not gaps:
        verdict = NOT_RUN
    elif not ran:
        verdict = NOT_PLANNED
    else:
        verdict = HOLDS if all(found.low > ROUNDING - margin for _, found in ran) else NOT_SHOWN
    evidence = [*_differences(ran), *_lacking(NOT_RUN, lacking), *_lacking(NOT_PLANNED, unplanned)]
    return Claim(text, verdict, "; ".join(evidence), counted)


def _differences(ran: Sequence[tuple[str, Estimate]]) -> list[str]:
    """Each with its interval; of many, how many there are and the two ends."""
    few = len(ran) <= SHOWN_AT_MOST
    said = [f"{name} {signed(found.value)} ({between(found, sign=True)})" for name, found in (ran if few else sorted(ran, key=_value))]
    return said if few else [f"{len(said)} differences, from {said[0]} to {said[-1]}"]


def _value(one: tuple[str, Estimate]) -> float:
    return one[1].value


def _lacking(why: str, names: Sequence[str]) -> list[str]:
    if len(names) > SHOWN_AT_MOST:
        return [f"{why}: {len(names)} differences, {names[0]} first"]
    return [f"{why}: {'; '.join(names)}"] if names else []


def gaps(ours: Systems, theirs: Systems, measure: Measure, *, sign: float = 1.0) -> list[Gap]:
    """Each of ours minus each of theirs, over the same queries; turned around for a negative sign."""
    found = []
    for one in ours:
        for other in theirs:
            compared = None if isinstance(one, str) or isinstance(other, str) else one.against(other, measure)
            difference = None if compared is None else compared.difference if sign > 0 else turned(compared.difference)
            names = [each if isinstance(each, str) else each.label for each in (one, other)]
            planned = not isinstance(one, str) and not isinstance(other, str)
            found.append(Gap(" − ".join(names if sign > 0 else reversed(names)), difference, planned))
    return found


def turned(found: Estimate) -> Estimate:
    return Estimate(-found.value, -found.high, -found.low)


def of(found: Sequence[Finding], *labels: str) -> list[Finding | str]:
    """Systems by label."""
    planned = {one.label: one for one in found}
    return [planned.get(label, label) for label in labels]


def prompted(found: Sequence[Finding]) -> list[Finding]:
    return [one for one in found if one.point.system.method == "promptdsi"]


def main(found: Sequence[Finding]) -> list[Claim]:
    """Tables 2 and 3."""
    variants, incdsi, multi, control = prompted(found), of(found, "IncDSI"), of(found, "Multi"), of(found, CONTROL)
    rivals = continual(found)
    frozen = [one for one in rivals if frozen_encoder(one)]
    lost = None if isinstance(incdsi[0], str) else incdsi[0].estimate(LOST)
    kept = None if lost is None else turned(lost)
    within = f"within {100 * KEPT:.0f} points"
    return [
        judged("Methods with a frozen encoder keep D0 better than DSI++", gaps(frozen, of(found, "DSI++"), D0)),
        judged("DSI++ keeps D0 better than Sequential", gaps(of(found, "DSI++"), of(found, "Sequential"), D0)),
        judged(f"Multi is best on new corpora {AMONG}", gaps(multi, rivals, NEW)),
        judged(f"IncDSI keeps D0, {within}", [Gap("after the last corpus − before the first", kept)], margin=KEPT),
        judged("Every PromptDSI variant is better on new corpora than IncDSI", gaps(variants, incdsi, NEW)),
        judged("Every PromptDSI variant is better on new corpora than IncDSI*", gaps(variants, of(found, "IncDSI*"), NEW)),
        judged(f"Every PromptDSI variant keeps D0 as IncDSI does, {within}", gaps(variants, incdsi, D0), margin=KEPT),
        judged("IncDSI and every PromptDSI variant are better on new corpora than DPR", gaps([*incdsi, *variants], of(found, "DPR"), NEW)),
        judged("… and than Joint", gaps([*incdsi, *variants], of(found, "Joint"), NEW)),
        judged(f"Not in the paper: every variant is better on new corpora than “{CONTROL}”", gaps(variants, control, NEW), counted=False),
        judged(f"Not in the paper: every variant keeps D0 better than “{CONTROL}”", gaps(variants, control, D0), counted=False),
        *(
            judged(
                f"Not in the paper: every continual system is better on new corpora than {label}, which learns nothing",
                gaps(rivals, of(found, label), NEW),
                counted=False,
            )
            for label in WITHOUT_ROWS
        ),
    ]


def parameters(found: Sequence[Finding]) -> list[Claim]:
    """Table 2: also "Params."."""
    checks = [
        (f"{label}, {data}", (extra + NEW_DOCUMENTS[data] * WIDTH) / 1e6, printed)
        for label, extra, *both in POOLS
        for data, printed in zip(NEW_DOCUMENTS, both, strict=True)
    ]
    return [*main(found), arithmetic("“Params.” are rows of new documents and pools, in millions", checks)]


def arithmetic(text: str, checks: Sequence[tuple[str, float, str]]) -> Claim:
    """Verified where all printed figures follow from the formula, in part where some do; the others are named."""
    said = [(f"{what}: {value:,.2f}, printed {printed}", follows(value, printed)) for what, value, printed in checks]
    other = [one if how is None else f"{one} ({how})" for one, how in said if how != ROUNDED]
    verdict = VERIFIED if not other else FAILS if len(other) == len(checks) else VERIFIED_IN_PART
    count = f"{len(checks) - len(other)} of {len(checks)} printed figures follow by rounding"
    return Claim(text, verdict, "; ".join([count, *(f"not {one}" for one in other)]))


def follows(value: float, printed: str) -> str | None:
    """How a printed figure comes from the value: rounded to the digits printed, cut to them, or not at all.

    Examples
    --------
    >>> follows(7.664, "7.6"), follows(7.675, "7.7"), follows(877.2, "977")
    ('cut', 'rounded', None)
    """
    power = 10 ** len(printed.partition(".")[2])
    shown = round(float(printed) * power)
    return ROUNDED if shown == round(value * power) else "cut" if shown == math.floor(value * power) else None


def curves(found: Sequence[Finding]) -> list[Claim]:
    """Figures 2 and 3."""
    variants, incdsi = prompted(found), of(found, "IncDSI")
    last = next((one.runs[0].last for one in found if one.runs), 1)
    steps = [
        Gap(f"{gap.name}, t = {step}", gap.found)
        for step in range(1, last + 1)
        for gap in gaps(variants, incdsi, after("A_t", "Hits@10", step))
    ]
    least = f"forgets as little as IncDSI, within {100 * KEPT:.0f} points of F_T"
    return [
        judged("Every PromptDSI variant is above IncDSI in A_t, after every corpus", steps),
        judged("… and in LA_T", gaps(variants, incdsi, LEARNED)),
        judged(f"Every PromptDSI variant {least}", gaps(variants, incdsi, FORGOT, sign=-1.0), margin=KEPT),
    ]


def one_pass(found: Sequence[Finding]) -> list[Claim]:
    """Table 4. Times have no interval and are shown, not judged."""
    claims = []
    for what, measure in (("D0 H@10", D0), ("A_T H@10", NEW), ("A_T M@10", NEW_MRR)):
        differences = [gap for one, two in passes.pairs(found) for gap in gaps([one], [two], measure)]
        claims.append(judged(f"One pass is as good as two in {what}, within {100 * KEPT:.0f} points", differences, margin=KEPT))
    return claims


def topics(found: Sequence[Finding]) -> list[Claim]:
    """Figures 4 and 5: the topics are of the data. How many the paper had can be recomputed from "Params."."""
    counts = [len(record["topics"]["words"]) for one in found for record in one.records if record.get("topics")]
    said = f"{counts[0]} topics; those of the paper are of other documents" if counts else NOT_RUN
    checks = [(f"{backbone}, {data}", (m * 20 + NEW_DOCUMENTS[data]) * WIDTH / 1e6, printed) for data, backbone, m, printed in TOPICS]
    return [
        Claim("Topics mined from D0", SHOWN if counts else NOT_RUN, said),
        arithmetic("“Params.” of Topic, in millions, follow from 80, 91, 182 and 193 topics", checks),
    ]


def example_queries(found: Sequence[Finding]) -> list[Claim]:
    """Table 5: words a query shares with the topic it chose, minus the mean over the other topics."""
    record = next((record for one in found for record in one.records if (record.get("topics") or {}).get("examples")), None)
    gap = None if record is None else estimate(resampled(np.array(list(shared_words(record["topics"])), dtype=np.float64)))
    return [
        judged(
            "Queries share more words with the topic they choose than with others (in hundredths of a word per query)",
            [Gap("own − others", gap)],
        )
    ]


def shared_words(record: dict[str, Any]) -> Iterable[float]:
    own = [set(words) for words in record["words"]]
    for topic, queries in enumerate(record["examples"]):
        for query in queries:
            counts = [len(words & set(re.findall(r"\w+", query.lower()))) for words in own]
            yield counts[topic] - (sum(counts) - counts[topic]) / max(1, len(own) - 1)


def resampled(values: np.ndarray[Any, np.dtype[np.float64]]) -> Figures:
    """The mean, then means of resamples."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    return np.concatenate([[values.mean()], values[drawn].mean(1)])


def pool_use(found: Sequence[Finding]) -> list[Claim]:
    """Figure 6. A resample can only lose prompts, and more of a pool with rarely chosen ones; a pool that is all in use
    leaves nothing for the claim to win."""
    use: dict[str, Figures] = {}
    for one in found:
        chosen = [utilisation.counts_of(record).sum(axis=0) for record in one.records if record.get("chosen")]
        if chosen:
            use[one.label] = over_seeds([used(counts) for counts in chosen])
    rest = [one.label for one in found if one.label != "Topic"]
    return [
        judged(
            f"Topic uses more of its pool than {' and '.join(rest)} (test queries of all corpora)",
            [Gap(f"Topic − {label}", estimate(use["Topic"] - use[label]) if {"Topic", label} <= use.keys() else None) for label in rest],
        )
    ]


def used(counts: np.ndarray[Any, np.dtype[np.float64]]) -> Figures:
    """The share of prompts that are chosen at all, then the same over resampled queries."""
    drawn = np.random.default_rng(len(counts)).multinomial(int(counts.sum()), counts / counts.sum(), RESAMPLES)
    return np.concatenate([[float((counts > 0).mean())], (drawn > 0).mean(1)])


def prompted_layers(found: Sequence[Finding]) -> list[Claim]:
    """Figure 7."""
    groups = {label: {tuple(layers.layers_of(one)): one for one in tried} for label, tried in layers.by_system(found).items()}
    single = [one for tried in groups.values() for which, one in tried.items() if len(which) == 1]
    top = max((which[0] for tried in groups.values() for which in tried), default=1)
    down = [gap for label in ("L2P", "S++") for gap in gaps([groups[label][2,]], [groups[label][top,]], D0)]
    two = [gap for which, one in groups["S++"].items() if len(which) == 2 for gap in gaps([one], [groups["S++"][1,]], NEW, sign=-1.0)]
    three = [gap for which, one in groups["S++"].items() if len(which) == 3 for gap in gaps([groups["S++"][1,]], [one], NEW_MRR)]
    return [
        judged("At every single layer PromptDSI is better on new corpora than IncDSI", gaps(single, of(found, "IncDSI"), NEW)),
        judged(f"L2P and S++ keep D0 better at layer 2 than at the top layer ({top} here)", down),
        judged(f"Two layers gain little over layer 1 on new corpora: less than {100 * KEPT:.0f} points", two, margin=KEPT),
        judged("Three layers are worse in MRR@10 on new corpora than layer 1", three),
    ]


def kept_memory(found: Sequence[Finding]) -> list[Claim]:
    """The paper's section on memory: its own sums, and the bytes of our runs, which have no chance in them."""
    number = re.compile(r"[\d.]+")
    sums = [(one.what, float(size(one.bytes).replace(",", "").split()[0]), number.findall(one.printed)[0]) for one in memory.SUMS]
    kept = {one.label: extra for one in found if (extra := one.each(lambda record: record["extra_bytes"])) is not None}
    labels = [one.label for one in prompted(found)]
    ran = [label for label in labels if label in kept] if "IncDSI" in kept else []
    less = all(kept[label] < kept["IncDSI"] for label in ran)
    verdict = NOT_RUN if len(ran) < len(labels) else HOLDS if less else FAILS
    evidence = ", ".join(f"{label} {size(kept[label])}" for label in [*ran, *(["IncDSI"] if ran else [])]) or "not run"
    return [arithmetic("Bytes kept follow from the formulas", sums), Claim("A pool is smaller than IncDSI's cache here", verdict, evidence)]


def data(found: Sequence[Finding]) -> list[Claim]:
    """Table 1: totals the other figures rest on, and the prose's 90 % and 2 %."""
    shares = [
        f"{name}: D0 {100 * counts[0] / sum(counts):.1f} %, D1 {100 * counts[1] / sum(counts):.2f} %" for name, counts in DOCUMENTS.items()
    ]
    totals = [sum(counts) for counts in DOCUMENTS.values()] == [memory.NQ, memory.MS_MARCO]
    said = f"{memory.NQ:,} and {memory.MS_MARCO:,} documents; the text says 90 % and 2 %, the table {'; '.join(shares)}"
    return [Claim("Documents add up to the totals the memory figures rest on", VERIFIED if totals else FAILS, said)]
