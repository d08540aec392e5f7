"""What the paper claims of each table and figure, as differences that can be judged (judging.py).

A difference is turned so that positive is what the paper says, and has a 95 % interval over queries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sums
from judging import FAILS, HOLDS, NOT_RUN, SHOWN, Claim, Gap, gaps, judge, turned

from promptdsi.bench.expectations import (
    CONTROL,
    COUNTS_QUERIES,
    D0,
    KEPT,
    LOST,
    NEW,
    WITHOUT_ROWS,
    continual,
    frozen_encoder,
    learning,
)
from promptdsi.bench.findings import Finding, Measure, on_new
from promptdsi.bench.published import SPEED_UP
from promptdsi.bench.reports import layers, passes, utilisation
from promptdsi.bench.reports.curves import after
from promptdsi.bench.tables import size
from promptdsi.evaluation.continual import Figures, Matrix, estimate, over_seeds

ROOT = Path(__file__).resolve().parent.parent
RESAMPLES = 1000
NEW_MRR = on_new("MRR@10", "A_T M@10")
LEARNED, FORGOT = Measure("LA_T H@10", Matrix.learning, "Hits@10", new=True), Measure("F_T H@10", Matrix.forgetting, "Hits@10", new=True)


def of(found: Sequence[Finding], *labels: str) -> list[Finding | str]:
    """Systems by label."""
    planned = {one.label: one for one in found}
    return [planned.get(label, label) for label in labels]


def prompted(found: Sequence[Finding]) -> list[Finding]:
    return [one for one in found if one.point.system.method == "promptdsi"]


def main(found: Sequence[Finding]) -> list[Claim]:
    """Tables 2 and 3."""
    variants, incdsi, multi, control = prompted(found), of(found, "IncDSI"), of(found, "Multi"), of(found, CONTROL)
    rivals, learned = continual(found), [one for one in learning(found) if one.label != "Multi"]
    frozen = [one for one in rivals if frozen_encoder(one)]
    lost = None if isinstance(incdsi[0], str) else incdsi[0].estimate(LOST)
    kept = None if lost is None else turned(lost)
    within = f"within {100 * KEPT:.0f} points"
    return [
        judge("Methods with a frozen encoder keep D0 better than DSI++", gaps(frozen, of(found, "DSI++"), D0)),
        judge("DSI++ keeps D0 better than Sequential", gaps(of(found, "DSI++"), of(found, "Sequential"), D0)),
        judge("Multi is best on new corpora among all that learn", gaps(multi, learned, NEW)),
        judge(f"IncDSI keeps D0, {within}", [Gap("after the last corpus − before the first", kept)], margin=KEPT),
        judge("Every PromptDSI variant is better on new corpora than IncDSI", gaps(variants, incdsi, NEW)),
        judge("Every PromptDSI variant is better on new corpora than IncDSI*", gaps(variants, of(found, "IncDSI*"), NEW)),
        judge(f"Every PromptDSI variant keeps D0 as IncDSI does, {within}", gaps(variants, incdsi, D0), margin=KEPT),
        judge("IncDSI and every PromptDSI variant are better on new corpora than DPR", gaps([*incdsi, *variants], of(found, "DPR"), NEW)),
        judge("… and than Joint", gaps([*incdsi, *variants], of(found, "Joint"), NEW)),
        judge(f"Not in the paper: every variant is better on new corpora than “{CONTROL}”", gaps(variants, control, NEW), counted=False),
        judge(f"Not in the paper: every variant keeps D0 better than “{CONTROL}”", gaps(variants, control, D0), counted=False),
        *(
            judge(
                f"Not in the paper: every continual system is better on new corpora than {label}, which learns nothing",
                gaps(rivals, of(found, label), NEW),
                counted=False,
            )
            for label in WITHOUT_ROWS
        ),
        judge(
            f"Not in the paper: Multi is better on new corpora than {COUNTS_QUERIES}, which learns nothing",
            gaps(multi, of(found, COUNTS_QUERIES), NEW),
            counted=False,
        ),
    ]


def bert(found: Sequence[Finding]) -> list[Claim]:
    """Table 2: also "Params."."""
    return [*main(found), sums.parameters("BERT")]


def sbert(found: Sequence[Finding]) -> list[Claim]:
    """Table 3: also "Params."."""
    return [*main(found), sums.parameters("SBERT")]


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
        judge("Every PromptDSI variant is above IncDSI in A_t, after every corpus", steps),
        judge("… and in LA_T", gaps(variants, incdsi, LEARNED)),
        judge(f"Every PromptDSI variant {least}", gaps(variants, incdsi, FORGOT, sign=-1.0), margin=KEPT),
    ]


def one_pass(found: Sequence[Finding]) -> list[Claim]:
    """Table 4. Times of two machines cannot be compared: ours are shown beside the paper's, not judged."""
    claims = []
    for what, measure in (("D0 H@10", D0), ("A_T H@10", NEW), ("A_T M@10", NEW_MRR)):
        differences = [gap for one, two in passes.pairs(found) for gap in gaps([one], [two], measure)]
        claims.append(judge(f"One pass is as good as two in {what}, within {100 * KEPT:.0f} points", differences, margin=KEPT))
    said = [
        f"{label} {row['learning: two passes ÷ one']:.1f}× ({row['learning, from … to']}) in learning, "
        f"{row['search: two passes ÷ one']:.1f}× ({row['search, from … to']}) in search"
        for label, row in timed_passes().items()
    ]
    claimed = ", ".join(f"{label} {factor}×" for label, factor in SPEED_UP.items())
    return [*claims, Claim(f"One pass is faster: {claimed}", SHOWN, f"bench-passes.md: {'; '.join(said)}")]


def speed_ups() -> dict[str, tuple[float, float]]:
    """How much faster one pass is in learning and in search, from `make bench`, which has one and two in turn on a quiet machine."""
    return {label: (row["learning: two passes ÷ one"], row["search: two passes ÷ one"]) for label, row in timed_passes().items()}


def timed_passes() -> dict[str, dict[str, Any]]:
    """Rows of docs/results/bench-passes.json by the paper's names: medians, and from where to where rounds went."""
    rows = json.loads((ROOT / "docs" / "results" / "bench-passes.json").read_text("utf-8"))["rows"]
    measured = {row["strategy"]: row for row in rows}
    return {label: measured[label.lower()] for label in SPEED_UP}


def topics(found: Sequence[Finding]) -> list[Claim]:
    """Figures 5 and 6: the topics are of the data. How many the paper had can be recomputed from "Params."."""
    counts = [record["topics"]["counts"] for one in found for record in one.records if record.get("topics")]
    said = f"{in_words(counts[0])}; those of the paper are of other documents" if counts else NOT_RUN
    return [
        Claim("Topics mined from D0", SHOWN if counts else NOT_RUN, said),
        sums.topics(),
    ]


def example_queries(found: Sequence[Finding]) -> list[Claim]:
    """Table 5: examples; ours come with the words a query shares with the topic it chose, minus the mean over the other topics."""
    record = next((record for one in found for record in one.records if (record.get("topics") or {}).get("examples")), None)
    gap = None if record is None else estimate(resampled(np.array(list(shared_words(record["topics"])), dtype=np.float64)))
    claim = judge(
        "Queries that choose a topic, and its terms (hundredths of a word shared with it, minus those shared with others)",
        [Gap("own − others", gap)],
    )
    if record is None:
        return [claim]
    said = f"{in_words(record['topics']['counts'])}: {claim.evidence}"
    return [claim._replace(verdict=SHOWN, evidence=said)]  # the paper prints examples and no figure


def in_words(counts: Sequence[int]) -> str:
    return f"{len(counts)} topics of {sum(counts):,} documents"


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
    """Figure 4, top. A resample can only lose prompts, and more of a pool with rarely chosen ones; a pool that is all in use
    leaves nothing for the claim to win."""
    found = utilisation.as_in_the_paper(found)
    use = {one.label: over_seeds([used(counts) for counts in chosen]) for one in found if (chosen := chosen_by(one))}
    rest = [one.label for one in found if one.label != "Topic"]
    return [
        judge(
            f"Topic uses more of its pool than {' and '.join(rest)} (test queries of all corpora)",
            [Gap(f"Topic − {label}", estimate(use["Topic"] - use[label]) if {"Topic", label} <= use.keys() else None) for label in rest],
        )
    ]


def pool_use_in_figures(found: Sequence[Finding]) -> list[Claim]:
    """Figure 4, bottom: also the two shares the text names."""
    topic = next((chosen for one in utilisation.as_in_the_paper(found) if one.label == "Topic" and (chosen := chosen_by(one))), [])
    claims = []
    for text, least, share in (("over 60 % of its pool", 0.6, used), ("over 30 % of it frequently", 0.3, frequent)):
        gap = estimate(over_seeds([share(counts) for counts in topic]) - least) if topic else None
        claims.append(judge(f"Topic uses {text}", [Gap(f"Topic − {100 * least:.0f} %", gap)]))
    return [*pool_use(found), *claims]


Counts = np.ndarray[Any, np.dtype[np.float64]]


def chosen_by(one: Finding) -> list[Counts]:
    """How often test queries of all corpora chose each prompt, seed by seed."""
    return [utilisation.counts_of(record).sum(axis=0) for record in one.records if record.get("chosen")]


def used(counts: Counts) -> Figures:
    """The share of prompts that are chosen at all, then the same over resampled queries."""
    return _over_resamples(counts, lambda drawn: (drawn > 0).mean(1))


def frequent(counts: Counts) -> Figures:
    """The share of prompts that more than 1/M of the queries choose, then the same over resampled queries."""
    return _over_resamples(counts, lambda drawn: (drawn > drawn.sum(1, keepdims=True) / len(counts)).mean(1))


def _over_resamples(counts: Counts, share: Callable[[Counts], Figures]) -> Figures:
    drawn = np.random.default_rng(len(counts)).multinomial(int(counts.sum()), counts / counts.sum(), RESAMPLES)
    return share(np.concatenate([counts[None], drawn]))


def prompted_layers(found: Sequence[Finding]) -> list[Claim]:
    """Figure 7."""
    groups = {label: {tuple(layers.layers_of(one)): one for one in tried} for label, tried in layers.by_system(found).items()}
    incdsi = of(found, "IncDSI")
    single = [one for tried in groups.values() for which, one in tried.items() if len(which) == 1]
    top = max((which[0] for tried in groups.values() for which in tried), default=1)
    down = [gap for label in ("L2P", "S++") for gap in gaps([groups[label][2,]], [groups[label][top,]], D0)]
    two = [gap for which, one in groups["S++"].items() if len(which) == 2 for gap in gaps([one], [groups["S++"][1,]], NEW, sign=-1.0)]
    kept = [gap for which, one in groups["S++"].items() if len(which) == 2 for gap in gaps([one], [groups["S++"][1,]], D0)]
    three = [gap for which, one in groups["S++"].items() if len(which) == 3 for gap in gaps([groups["S++"][1,]], [one], NEW_MRR)]
    second = [tried[2,] for tried in groups.values()]
    beside = [(coda, [groups[label][which] for label in ("L2P", "S++")]) for which, coda in groups["CODA"].items()]
    return [
        judge("At every single layer PromptDSI is better on new corpora than IncDSI", gaps(single, incdsi, NEW)),
        judge("CODA keeps D0 better than L2P and S++, layer by layer", [gap for one, rest in beside for gap in gaps([one], rest, D0)]),
        judge(
            "… and is behind them on new corpora, layer by layer",
            [gap for one, rest in beside for gap in gaps([one], rest, NEW, sign=-1.0)],
        ),
        judge(f"At layer 2 as much of D0 is kept as IncDSI keeps, within {100 * KEPT:.0f} points", gaps(second, incdsi, D0), margin=KEPT),
        judge(f"L2P and S++ keep D0 better at layer 2 than at the top layer ({top} here)", down),
        judge(f"Two layers gain little over layer 1 on new corpora: less than {100 * KEPT:.0f} points", two, margin=KEPT),
        judge("… and keep more of D0", kept),
        judge("Three layers are worse in MRR@10 on new corpora than layer 1", three),
    ]


def kept_memory(found: Sequence[Finding]) -> list[Claim]:
    """The paper's section on memory: its own sums, and the bytes of our runs, which have no chance in them."""
    kept = {one.label: extra for one in found if (extra := one.each(lambda record: record["extra_bytes"])) is not None}
    labels = [one.label for one in prompted(found)]
    ran = [label for label in labels if label in kept] if "IncDSI" in kept else []
    less = all(kept[label] < kept["IncDSI"] for label in ran)
    verdict = NOT_RUN if len(ran) < len(labels) else HOLDS if less else FAILS
    evidence = ", ".join(f"{label} {size(kept[label])}" for label in [*ran, *(["IncDSI"] if ran else [])]) or "not run"
    return [sums.bytes_kept(), Claim("A pool is smaller than IncDSI's cache here", verdict, evidence)]


def data(found: Sequence[Finding]) -> list[Claim]:
    """Table 1: nothing of it is measured."""
    return [sums.documents()]
