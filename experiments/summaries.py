"""Sentences that reports begin with, made from the records by rule: how much was tested, which differences are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from promptdsi.bench.plan import Setting
from promptdsi.bench.provenance import query_counts
from promptdsi.bench.report import few_queries
from promptdsi.bench.runs import unpack_ranks
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults
from promptdsi.evaluation.continual import Estimate, Figures, estimate, mean
from promptdsi.evaluation.evaluate import values

from .regime import HIGHEST_LOSS, PAPER, last_loss, regime_of
from .shared import before_measure, find_result, interval, signed, started_from_d0
from .verdicts import HOLDS, NOT_PLANNED, NOT_RUN, NOT_SHOWN, REFUTED, UNTESTABLE, Claim

PREDICATES = {  # of one claim, and of several
    **{HOLDS: ("holds", "hold"), REFUTED: ("is refuted", "are refuted"), NOT_SHOWN: ("is not shown", "are not shown")},
    **dict.fromkeys([UNTESTABLE], ("cannot be tested in this regime",) * 2),
    NOT_RUN: ("waits for a system that has not run", "wait for systems that have not run"),
}
NEW_WORDS = ("more new documents", "fewer new documents", "neither clearly more nor clearly fewer new documents")
D0_WORDS = ("more", "less", "neither clearly more nor clearly less")
LEAST_OVER_DENSE = 0.05  # D0 has been learned where it passes this and HIGHEST_LOSS
SETTINGS_SHOWN = 3  # in a sentence; of more, the least and the most


def tested(results: SystemResults, what: str = "") -> str:
    """How many queries, systems and runs; the queries first."""
    split, systems = results.experiment.split, [result for result in results.all if result.records]
    few = ", too few to rank systems" if few_queries(results) else ""
    sources = sorted({str(setting.d0.stream["source"]) for setting, _ in results.settings()})
    labels = {(result.group, result.point.system.label) for result in systems}
    counted = f"{plural(len(labels), 'system')} in {plural(sum(len(result.records) for result in systems), 'run')}"
    return f"n = {counts_in_words(query_counts(results), split)}{few}: {counted} on documents of {' and '.join(sources)}{what}."


def counts_in_words(counts: Mapping[str, tuple[int, int]], split: str) -> str:
    """Numbers of queries by setting."""
    return "; ".join(
        f"{d0:,} and {new:,} ({label})" if place else f"{d0:,} {split} queries on D0 and {new:,} on new documents ({label})"
        for place, (label, (d0, new)) in enumerate(counts.items())
    )


def seeds_in_words(results: SystemResults) -> str:
    """How many seeds the systems have.

    One is the least: an interval is then about that run.
    """
    counts = sorted({len(result.seeds) for result in results.all if result.records})
    return "each system has one seed" if counts == [1] else f"systems have {listed(map(str, counts), 'or')} seeds"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names in a sentence.

    Examples
    --------
    >>> listed(["L2P"]), listed(["L2P", "S++", "CODA"])
    ('L2P', 'L2P, S++ and CODA')
    """
    *first, end = list(names) or ["none"]
    return f"{', '.join(first)} {last} {end}" if first else end


def with_interval(difference: Estimate) -> str:
    """A difference in points and its interval."""
    return f"{signed(difference.value)} ({interval(difference, sign=True)})"


def over_settings(differences: Mapping[str, Estimate], words: tuple[str, str, str], rival: str, noun: str = "streams") -> str:
    """How a difference turned out over the settings: words for above zero, below it and neither, then figures with intervals.

    Examples
    --------
    >>> over_settings({"a": Estimate(0.02, 0.01, 0.03), "b": Estimate(0.01, -0.01, 0.03)}, D0_WORDS, "IncDSI")
    'more than IncDSI on 1 of 2 streams: a +2.0 (+1.0 to +3.0), b +1.0 (−1.0 to +3.0)'
    """
    if not differences:
        return ""
    above, below = (sum(each.excludes_zero and sign * each.value > 0 for each in differences.values()) for sign in (1, -1))
    parts = [
        f"{word} than {rival}{_share(number, len(differences), noun)}" for word, number in ((words[0], above), (words[1], below)) if number
    ]
    ordered = sorted(differences.values(), key=lambda each: each.value)
    figures = (
        ", ".join(f"{setting} {with_interval(each)}" for setting, each in differences.items())
        if len(ordered) <= SETTINGS_SHOWN
        else f"{with_interval(ordered[0])} to {with_interval(ordered[-1])}"
    )
    return f"{listed(parts) if parts else f'{words[2]} than {rival}'}: {figures}"


def _share(number: int, of: int, noun: str) -> str:
    return f" on {number} of {of} {noun}" if of > 1 else ""


def by_verdict(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict; what this scale does not plan is not counted."""
    verdicts = [claim.verdict for claim in claims if claim.verdict != NOT_PLANNED]
    return f"of {plural(len(verdicts), 'claim')} {listed(with_verdicts(verdicts))}"


def with_verdicts(verdicts: Sequence[str]) -> list[str]:
    """How many claims have which verdict.

    Examples
    --------
    >>> with_verdicts([HOLDS, REFUTED, HOLDS])
    ['2 hold', '1 is refuted']
    """
    return [f"{number} {words[number > 1]}" for verdict, words in PREDICATES.items() if (number := verdicts.count(verdict))]


def lowest(claim: Claim) -> str:
    """The difference that speaks most against a claim."""
    ran = [(gap.name, estimate(gap.figures)) for gap in claim.gaps if gap.figures is not None]
    name, difference = min(ran, key=lambda pair: pair[1].value)
    return f"{name} {with_interval(difference)}"


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def mean_difference(ours: Sequence[SystemResult], theirs: SystemResult | None, measure: Measure) -> Figures | None:
    """The mean of some systems minus another, paired over queries; None where nothing of either has run."""
    differences = [] if theirs is None else [each for system in ours if (each := system.difference(theirs, measure)) is not None]
    return mean(differences) if differences else None


class Gate(NamedTuple):
    """Whether D0 has been learned: its Hits@10 minus that of Dense, on which split, and the mean loss of its last epoch."""

    over_dense: float | None
    split: str
    loss: float | None

    @property
    def passed(self) -> bool | None:
        if self.over_dense is None or self.loss is None:
            return None
        return self.over_dense >= LEAST_OVER_DENSE and self.loss < HIGHEST_LOSS

    def __str__(self) -> str:
        verdict = {True: "passed", False: "not passed", None: "not known"}[self.passed]
        over = "Dense has not run" if self.over_dense is None else f"{signed(self.over_dense)} points of Hits@10 over Dense on {self.split}"
        loss = "loss not recorded" if self.loss is None else f"loss {self.loss:.2f}"
        return f"{verdict} ({over}, {loss})"


def gate_of(results: SystemResults, setting: Setting) -> Gate:
    """The gate of a setting's D0: on dev where Dense was evaluated there too, else on D0's test queries before the first new corpus."""
    record, systems = results.d0.get(setting.name), results.of(setting)
    dense, start = find_result(systems, "Dense"), started_from_d0(systems)
    loss = None if record is None else last_loss(record)
    if record is not None and dense is not None and "dev" in dense.records[0].ranks:
        on_dev = [values("Hits@10", unpack_ranks(each.ranks["dev"]["0"][0])).mean() for each in (record, dense.records[0])]
        return Gate(float(on_dev[0] - on_dev[1]), "dev", loss)
    difference = start.difference(dense, before_measure("Hits@10")) if start and dense else None
    return Gate(None if difference is None else float(difference[0]), "test", loss)


def regimes(results: SystemResults) -> str:
    """Which settings are in another regime than the paper; empty where none is known to be."""
    measured = {setting.label: regime for setting, _ in results.settings() if (regime := regime_of(results, setting)) is not None}
    unlearned = [label for label, regime in measured.items() if regime.moves_as_in_paper and not regime.as_in_paper]
    if unlearned:
        return f"D0 did not pass its gate ({listed(unlearned)})"
    texts = [f"{regime.ratio:.2g} ({label})" for label, regime in measured.items() if not regime.as_in_paper]
    moves = f"a new row moves {listed(texts)} times as far as a row of D0, in the paper {PAPER.ratio:.2f} times"
    return f"this is not the paper's regime: {moves}" if texts else ""
