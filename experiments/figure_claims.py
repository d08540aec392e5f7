"""What the paper claims of its other tables and figures: passes, topics, use of the pools, layers, memory, data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi.bench.run_records import TopicRecord
from promptdsi.bench.system_results import SystemResult, on_new
from promptdsi.evaluation.continual import Figures, over_seeds

from . import paper_sums
from .paper_claims import D0, NEW, TOLERANCE, WITHIN, by_label, prompted
from .published import SPEED_UP
from .reports import layers, passes, utilisation
from .shared import size
from .verdicts import HOLDS, NOT_RUN, REFUTED, SHOWN, Claim, Gap, about, gaps, judge

ROOT = Path(__file__).resolve().parent.parent
RESAMPLES = 1000
NEW_MRR = on_new("MRR@10", "A_T M@10")


def one_pass(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 4. Times of two machines cannot be compared: ours are shown beside the paper's, not judged."""
    claims = []
    for what, measure in (("D0 H@10", D0), ("A_T H@10", NEW), ("A_T M@10", NEW_MRR)):
        differences = [gap for single, two in passes.pairs(systems) for gap in gaps([single], [two], measure)]
        claims.append(about(f"One pass is as good as two in {what}, {WITHIN}", differences, margin=TOLERANCE))
    measured = [
        f"{label} {row['learning: two passes ÷ one']:.1f}× ({row['learning, from … to']}) in learning, "
        f"{row['search: two passes ÷ one']:.1f}× ({row['search, from … to']}) in search"
        for label, row in timed_passes().items()
    ]
    claimed = ", ".join(f"{label} {factor}×" for label, factor in SPEED_UP.items())
    return [*claims, Claim(f"One pass is faster: {claimed}", SHOWN, f"bench-passes.md: {'; '.join(measured)}")]


def speed_ups() -> dict[str, tuple[float, float]]:
    """How much faster one pass is in learning and in search, from `make bench`, which has one and two in turn on a quiet machine."""
    return {label: (row["learning: two passes ÷ one"], row["search: two passes ÷ one"]) for label, row in timed_passes().items()}


def timed_passes() -> dict[str, dict[str, Any]]:
    """Rows of docs/results/bench-passes.json by the paper's names: medians, and from where to where rounds went."""
    rows = json.loads((ROOT / "docs" / "results" / "bench-passes.json").read_text("utf-8"))["rows"]
    measured = {row["strategy"]: row for row in rows}
    return {label: measured[label.lower()] for label in SPEED_UP}


def topics(systems: Sequence[SystemResult]) -> list[Claim]:
    """Figures 5 and 6: the topics are of the data. How many the paper had can be recomputed from "Params."."""
    counts = [record.topics.counts for system in systems for record in system.records if record.topics]
    text = f"{in_words(counts[0])}; those of the paper are of other documents" if counts else NOT_RUN
    return [
        Claim("Topics mined from D0", SHOWN if counts else NOT_RUN, text),
        paper_sums.topics(),
    ]


def example_queries(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 5: examples; ours come with the words a query shares with the topic it chose, minus the mean over the other topics."""
    topics = next((record.topics for system in systems for record in system.records if record.topics and record.topics.examples), None)
    difference = None if topics is None else resampled(np.array(list(shared_words(topics)), dtype=np.float64))
    text = "Queries that select a topic, and its terms (hundredths of a word shared with it, minus those shared with others)"
    (claim,) = judge([about(text, [Gap("own − others", difference)])])
    if topics is None:
        return [claim]
    evidence = f"{in_words(topics.counts)}: {claim.evidence}"
    return [claim._replace(verdict=SHOWN, evidence=evidence)]  # the paper prints examples and no figure


def in_words(counts: Sequence[int]) -> str:
    return f"{len(counts)} topics of {sum(counts):,} documents"


def shared_words(topics: TopicRecord) -> Iterable[float]:
    terms = [set(words) for words in topics.words]
    for topic, queries in enumerate(topics.examples or []):
        for query in queries:
            counts = [len(words & set(re.findall(r"\w+", query.lower()))) for words in terms]
            yield counts[topic] - (sum(counts) - counts[topic]) / max(1, len(terms) - 1)


def resampled(values: np.ndarray[Any, np.dtype[np.float64]]) -> Figures:
    """The mean, then means of resamples."""
    samples = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    return np.concatenate([[values.mean()], values[samples].mean(1)])


def pool_use(systems: Sequence[SystemResult]) -> list[Claim]:
    """Figure 4, top. A resample can only lose prompts, and more of a pool with rarely chosen ones; a pool that is all in use
    leaves nothing for the claim to win."""
    systems = utilisation.as_in_the_paper(systems)
    use = {result.label: over_seeds([used(counts) for counts in chosen]) for result in systems if (chosen := chosen_by(result))}
    rest = [result.label for result in systems if result.label != "Topic"]
    return [
        about(
            f"Topic uses more of its pool than {' and '.join(rest)} (test queries of all corpora)",
            [Gap(f"Topic − {label}", use["Topic"] - use[label] if {"Topic", label} <= use.keys() else None) for label in rest],
        )
    ]


def pool_use_in_figures(systems: Sequence[SystemResult]) -> list[Claim]:
    """Figure 4, bottom: also the two shares the text names."""
    topic = next(
        (chosen for result in utilisation.as_in_the_paper(systems) if result.label == "Topic" and (chosen := chosen_by(result))), []
    )
    claims = []
    for text, least, share in (("over 60 % of its pool", 0.6, used), ("over 30 % of it frequently", 0.3, frequent)):
        difference = over_seeds([share(counts) for counts in topic]) - least if topic else None
        claims.append(about(f"Topic uses {text}", [Gap(f"Topic − {100 * least:.0f} %", difference)]))
    return [*pool_use(systems), *claims]


Counts = np.ndarray[Any, np.dtype[np.float64]]


def chosen_by(result: SystemResult) -> list[Counts]:
    """How often test queries of all corpora chose each prompt, seed by seed."""
    return [utilisation.counts_of(record).sum(axis=0) for record in result.records if record.prompt_counts]


def used(counts: Counts) -> Figures:
    """The share of prompts that are chosen at all, then the same over resampled queries."""
    return _over_resamples(counts, lambda resamples: (resamples > 0).mean(1))


def frequent(counts: Counts) -> Figures:
    """The share of prompts that more than 1/M of the queries choose, then the same over resampled queries."""
    return _over_resamples(counts, lambda resamples: (resamples > resamples.sum(1, keepdims=True) / len(counts)).mean(1))


def _over_resamples(counts: Counts, share: Callable[[Counts], Figures]) -> Figures:
    resamples = np.random.default_rng(len(counts)).multinomial(int(counts.sum()), counts / counts.sum(), RESAMPLES)
    return share(np.concatenate([counts[None], resamples]))


def prompted_layers(systems: Sequence[SystemResult]) -> list[Claim]:
    """Figure 7."""
    groups = {label: {tuple(layers.layers_of(result)): result for result in tried} for label, tried in layers.by_system(systems).items()}
    incdsi = by_label(systems, "IncDSI")
    single = [result for tried in groups.values() for which, result in tried.items() if len(which) == 1]
    top = max((which[0] for tried in groups.values() for which in tried), default=1)
    down = [gap for label in ("L2P", "S++") for gap in gaps([groups[label][2,]], [groups[label][top,]], D0)]
    two = [gap for which, result in groups["S++"].items() if len(which) == 2 for gap in gaps([result], [groups["S++"][1,]], NEW, sign=-1.0)]
    retained = [gap for which, result in groups["S++"].items() if len(which) == 2 for gap in gaps([result], [groups["S++"][1,]], D0)]
    three = [gap for which, result in groups["S++"].items() if len(which) == 3 for gap in gaps([groups["S++"][1,]], [result], NEW_MRR)]
    second = [tried[2,] for tried in groups.values()]
    comparisons = [(coda, [groups[label][which] for label in ("L2P", "S++")]) for which, coda in groups["CODA"].items()]
    return [
        about("At every single layer PromptDSI is better on new corpora than IncDSI", gaps(single, incdsi, NEW), needs_regime=True),
        about(
            "CODA retains D0 better than L2P and S++, layer by layer", [gap for coda, rest in comparisons for gap in gaps([coda], rest, D0)]
        ),
        about(
            "CODA is behind L2P and S++ on new corpora, layer by layer",
            [gap for coda, rest in comparisons for gap in gaps([coda], rest, NEW, sign=-1.0)],
        ),
        about(f"At layer 2 D0 is retained as IncDSI retains it, {WITHIN}", gaps(second, incdsi, D0), margin=TOLERANCE, needs_regime=True),
        about(f"L2P and S++ retain D0 better at layer 2 than at the top layer ({top} here)", down),
        about(f"Two layers gain little over layer 1 on new corpora: less than {100 * TOLERANCE:.0f} points", two, margin=TOLERANCE),
        about("Two layers retain more of D0 than layer 1", retained),
        about("Three layers are worse in MRR@10 on new corpora than layer 1", three),
    ]


def stored_memory(systems: Sequence[SystemResult]) -> list[Claim]:
    """The paper's section on memory: its arithmetic, and the bytes of our runs, which are not random."""
    stored = {result.label: extra for result in systems if (extra := result.mean_of(lambda record: record.extra_bytes)) is not None}
    labels = [result.label for result in prompted(systems)]
    ran = [label for label in labels if label in stored] if "IncDSI" in stored else []
    less = all(stored[label] < stored["IncDSI"] for label in ran)
    verdict = NOT_RUN if len(ran) < len(labels) else HOLDS if less else REFUTED
    evidence = ", ".join(f"{label} {size(stored[label])}" for label in [*ran, *(["IncDSI"] if ran else [])]) or "not run"
    return [paper_sums.bytes_stored(), Claim("A pool is smaller than IncDSI's cache here", verdict, evidence)]


def data(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 1: nothing of it is measured."""
    return [paper_sums.documents()]
