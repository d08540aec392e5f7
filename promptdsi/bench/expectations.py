"""What the paper leads one to expect of the main table, and whether it is found: yes, no, or not shown by these queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from promptdsi.bench.findings import Finding, Measure, named, on_d0, on_new
from promptdsi.bench.tables import between, score, signed
from promptdsi.evaluation.continual import Compared, Estimate, Matrix
from promptdsi.methods import methods
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.sequential import Sequential

CONTROL = "Rows only"
# D0 counts as kept if less than two points of Hits@10 are lost: twice what separates the frozen-encoder methods in the paper's tables.
KEPT = 0.02
D0, NEW = on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10")
WITHOUT_ROWS = ("Dense", "BM25")
COUNTS_QUERIES = "BM25 with train queries"  # the strongest that learns nothing: it has read the queries rows learn from
LEARN_NOTHING = {"bm25", "dense"}
LOST = Measure("D0 H@10 lost", Matrix.d0_forgetting, "Hits@10")


class Expectation(NamedTuple):
    claim: str
    verdict: str
    evidence: str


def expectations(found: Sequence[Finding]) -> Iterator[Expectation]:
    """One after the other, where the systems it is about have run."""
    frozen, prompted = [one for one in continual(found) if one.records and frozen_encoder(one)], [one for one in found if prompts(one)]
    replay, sequential, multi = (named(found, label) for label in ("DSI++", "Sequential", "Multi"))
    incdsi, control = named(found, "IncDSI"), named(found, CONTROL)
    if replay and frozen:
        yield _all("Methods with a frozen encoder keep D0 better than DSI++", frozen, replay, D0)
    if replay and sequential:
        yield _all("DSI++ keeps D0 better than Sequential", [replay], sequential, D0)
    rivals = [one for one in learning(found) if one.label != "Multi"]
    if multi and all(one.records for one in rivals):
        yield _best("Multi is best on new corpora among all that learn", multi, rivals, NEW)
    if multi and (counting := named(found, COUNTS_QUERIES)):
        yield _best(f"Multi is better on new corpora than {COUNTS_QUERIES}, which learns nothing", multi, [counting], NEW)
    if incdsi:
        yield _kept(incdsi)
    if incdsi and prompted:
        yield _all("Every PromptDSI variant is better on new corpora than IncDSI", prompted, incdsi, NEW)
    if control and prompted:
        yield _all(f"Every PromptDSI variant is better on new corpora than “{CONTROL}”", prompted, control, NEW)
        yield _all(f"Every PromptDSI variant keeps D0 better than “{CONTROL}”", prompted, control, D0)
    for label in WITHOUT_ROWS:
        if (other := named(found, label)) and (ran := [one for one in continual(found) if one.records]):
            yield _all(f"Every continual system is better on new corpora than {label}, which learns nothing", ran, other, NEW)


def continual(found: Sequence[Finding]) -> list[Finding]:
    """Systems with rows that learn corpus after corpus and read nothing that is forbidden: what references are compared with."""
    return [one for one in found if _is_dsi(one) and not one.reference]


def learning(found: Sequence[Finding]) -> list[Finding]:
    """Systems that learn from queries, with rows or without, references too."""
    return [one for one in found if one.point.system.method not in LEARN_NOTHING]


def frozen_encoder(one: Finding) -> bool:
    return _is_dsi(one) and not issubclass(methods()[one.point.system.method], Sequential)


def prompts(one: Finding) -> bool:
    return bool(one.records) and one.point.system.method == "promptdsi"


def _is_dsi(one: Finding) -> bool:
    return issubclass(methods()[one.point.system.method], DSIMethod)


def _compare(ours: Finding, theirs: Finding, measure: Measure) -> Compared:
    found = ours.against(theirs, measure)
    assert found is not None, "both have run"
    return found


def _all(claim: str, ours: Sequence[Finding], theirs: Finding, measure: Measure) -> Expectation:
    """Each of ours better than theirs."""
    compared = [_compare(one, theirs, measure) for one in ours]
    said = [f"{one.label} {signed(each.difference.value)}" for one, each in zip(ours, compared, strict=True)]
    return Expectation(claim, verdict(compared), f"{measure.name} against {_shown(theirs, measure)}: {', '.join(said)}")


def _best(claim: str, ours: Finding, others: Sequence[Finding], measure: Measure) -> Expectation:
    if not others:
        return Expectation(claim, "not shown", f"{measure.name} of {_shown(ours, measure)}; nothing to compare with")
    best = max(others, key=lambda one: one.value(measure) or 0.0)
    apart = _compare(ours, best, measure).difference
    said = f"{measure.name} of {_shown(ours, measure)}, of {'the next ' if len(others) > 1 else ''}{_shown(best, measure)}"
    return Expectation(
        claim,
        verdict([_compare(ours, one, measure) for one in others]),
        f"{said}: {signed(apart.value)}, {between(apart, sign=True)}",
    )


def _kept(one: Finding) -> Expectation:
    lost = one.estimate(LOST)
    assert lost is not None, "it has run"
    evidence = f"{signed(lost.value)} points lost, {between(lost, sign=True)}"
    return Expectation(f"{one.label} keeps D0: less than {100 * KEPT:.0f} points of Hits@10 are lost", kept(lost), evidence)


def kept(lost: Estimate) -> str:
    """Whether a loss is shown to be below KEPT.

    Examples
    --------
    >>> kept(Estimate(0.0, -0.01, 0.01)), kept(Estimate(0.5, 0.4, 0.6)), kept(Estimate(0.02, 0.0, 0.04))
    ('yes', 'no', 'not shown')
    """
    return "yes" if lost.high < KEPT else "no" if lost.low >= KEPT else "not shown"


def verdict(compared: Sequence[Compared]) -> str:
    """yes if all are better, no if any is worse."""
    said = [one.verdict for one in compared]
    return "no" if "worse" in said else "yes" if all(one == "better" for one in said) else "not shown"


def _shown(one: Finding, measure: Measure) -> str:
    entry = score(one.value(measure))
    return f"{one.label} {entry.text if entry else '–'}"
