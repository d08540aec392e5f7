"""What the paper claims of its main tables and curves, and whether our runs show it.

`expectations` are answered yes, no or not shown in the main report. The claims of docs/REPRODUCTION.md, table by table, are judged
by intervals (verdicts.py); those of the other figures are in figure_claims.py, arithmetic in paper_sums.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from promptdsi.bench.system_results import Measure, SystemResult, on_d0, on_new
from promptdsi.bench.tables import score
from promptdsi.evaluation.continual import Compared, Estimate, Matrix
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.sequential import Sequential

from . import paper_sums
from .published import CONTROL
from .reports.curves import after
from .shared import find_result, interval, signed
from .verdicts import Claim, Gap, gaps, judge, negated

# D0 counts as retained if forgetting is less than two points of Hits@10: twice what separates the frozen-encoder methods in the paper.
TOLERANCE = 0.02
D0, NEW = on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10")
FORGETTING = Measure("D0 H@10 forgetting", Matrix.d0_forgetting, "Hits@10")
LEARNED = Measure("LA_T H@10", Matrix.learning, "Hits@10", new=True)
FORGOTTEN = Measure("F_T H@10", Matrix.forgetting, "Hits@10", new=True)
WITHOUT_ROWS = ("Dense", "BM25")
WITH_QUERIES = "BM25 with train queries"  # the strongest that learns nothing: it indexes the queries rows learn from
LEARN_NOTHING = {"bm25", "dense"}
WITHIN = f"within {100 * TOLERANCE:.0f} points"


def continual(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """Systems with rows that learn corpus after corpus without old data: what references are compared with."""
    return [system for system in systems if _is_dsi(system) and not system.reference]


def learning(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """Systems that learn from queries, with rows or without, references too."""
    return [system for system in systems if system.point.system.method not in LEARN_NOTHING]


def frozen_encoder(system: SystemResult) -> bool:
    return _is_dsi(system) and not issubclass(methods()[system.point.system.method], Sequential)


def prompted(systems: Sequence[SystemResult]) -> list[SystemResult]:
    return [system for system in systems if system.point.system.method == "promptdsi"]


def by_label(systems: Sequence[SystemResult], *labels: str) -> list[SystemResult | str]:
    """Systems by label; a label alone is a system this scale does not plan."""
    planned = {system.label: system for system in systems}
    return [planned.get(label, label) for label in labels]


def _is_dsi(system: SystemResult) -> bool:
    return issubclass(methods()[system.point.system.method], DSIMethod)


def expectations(systems: Sequence[SystemResult]) -> Iterator[Claim]:
    """One after the other, where the systems it is about have run."""
    frozen = [system for system in continual(systems) if system.records and frozen_encoder(system)]
    variants = [system for system in prompted(systems) if system.records]
    replay, sequential, multi = (find_result(systems, label) for label in ("DSI++", "Sequential", "Multi"))
    incdsi, control = find_result(systems, "IncDSI"), find_result(systems, CONTROL)
    if replay and frozen:
        yield _all("Methods with a frozen encoder retain D0 better than DSI++", frozen, replay, D0)
    if replay and sequential:
        yield _all("DSI++ retains D0 better than Sequential", [replay], sequential, D0)
    rivals = [system for system in learning(systems) if system.label != "Multi"]
    if multi and all(system.records for system in rivals):
        yield _best("Multi is best on new corpora among all that learn", multi, rivals, NEW)
    if multi and (counting := find_result(systems, WITH_QUERIES)):
        yield _best(f"Multi is better on new corpora than {WITH_QUERIES}, which learns nothing", multi, [counting], NEW)
    if incdsi:
        yield _retained(incdsi)
    if incdsi and variants:
        yield _all("Every PromptDSI variant is better on new corpora than IncDSI", variants, incdsi, NEW)
    if control and variants:
        yield _all(f"Every PromptDSI variant is better on new corpora than “{CONTROL}”", variants, control, NEW)
        yield _all(f"Every PromptDSI variant retains D0 better than “{CONTROL}”", variants, control, D0)
    for label in WITHOUT_ROWS:
        if (other := find_result(systems, label)) and (ran := [system for system in continual(systems) if system.records]):
            yield _all(f"Every continual system is better on new corpora than {label}, which learns nothing", ran, other, NEW)


def _compare(ours: SystemResult, theirs: SystemResult, measure: Measure) -> Compared:
    compared = ours.against(theirs, measure)
    assert compared is not None, "both have run"
    return compared


def _all(text: str, ours: Sequence[SystemResult], theirs: SystemResult, measure: Measure) -> Claim:
    """Each of ours better than theirs."""
    compared = [_compare(system, theirs, measure) for system in ours]
    differences = [f"{system.label} {signed(both.difference.value)}" for system, both in zip(ours, compared, strict=True)]
    return Claim(text, verdict(compared), f"{measure.name} against {_shown(theirs, measure)}: {', '.join(differences)}")


def _best(text: str, ours: SystemResult, others: Sequence[SystemResult], measure: Measure) -> Claim:
    if not others:
        return Claim(text, "not shown", f"{measure.name} of {_shown(ours, measure)}; nothing to compare with")
    best = max(others, key=lambda system: system.value(measure) or 0.0)
    difference = _compare(ours, best, measure).difference
    values = f"{measure.name} of {_shown(ours, measure)}, of {'the next ' if len(others) > 1 else ''}{_shown(best, measure)}"
    evidence = f"{values}: {signed(difference.value)}, {interval(difference, sign=True)}"
    return Claim(text, verdict([_compare(ours, system, measure) for system in others]), evidence)


def _retained(system: SystemResult) -> Claim:
    forgetting = system.estimate(FORGETTING)
    assert forgetting is not None, "it has run"
    evidence = f"forgetting {signed(forgetting.value)} points, {interval(forgetting, sign=True)}"
    return Claim(
        f"{system.label} retains D0: forgetting is less than {100 * TOLERANCE:.0f} points of Hits@10", retained(forgetting), evidence
    )


def retained(forgetting: Estimate) -> str:
    """Whether forgetting is shown to be below the tolerance.

    Examples
    --------
    >>> retained(Estimate(0.0, -0.01, 0.01)), retained(Estimate(0.5, 0.4, 0.6)), retained(Estimate(0.02, 0.0, 0.04))
    ('yes', 'no', 'not shown')
    """
    return "yes" if forgetting.high < TOLERANCE else "no" if forgetting.low >= TOLERANCE else "not shown"


def verdict(compared: Sequence[Compared]) -> str:
    """yes if all are better, no if any is worse."""
    verdicts = [both.verdict for both in compared]
    return "no" if "worse" in verdicts else "yes" if all(each == "better" for each in verdicts) else "not shown"


def _shown(system: SystemResult, measure: Measure) -> str:
    entry = score(system.value(measure))
    return f"{system.label} {entry.text if entry else '–'}"


def main_table(systems: Sequence[SystemResult]) -> list[Claim]:
    """Tables 2 and 3."""
    variants, incdsi, multi, control = prompted(systems), *(by_label(systems, label) for label in ("IncDSI", "Multi", CONTROL))
    rivals, learned = continual(systems), [system for system in learning(systems) if system.label != "Multi"]
    frozen = [system for system in rivals if frozen_encoder(system)]
    forgetting = None if isinstance(incdsi[0], str) else incdsi[0].estimate(FORGETTING)
    change = None if forgetting is None else negated(forgetting)
    return [
        judge("Methods with a frozen encoder retain D0 better than DSI++", gaps(frozen, by_label(systems, "DSI++"), D0)),
        judge("DSI++ retains D0 better than Sequential", gaps(by_label(systems, "DSI++"), by_label(systems, "Sequential"), D0)),
        judge("Multi is best on new corpora among all that learn", gaps(multi, learned, NEW)),
        judge(f"IncDSI retains D0, {WITHIN}", [Gap("after the last corpus − before the first", change)], margin=TOLERANCE),
        judge("Every PromptDSI variant is better on new corpora than IncDSI", gaps(variants, incdsi, NEW)),
        judge("Every PromptDSI variant is better on new corpora than IncDSI*", gaps(variants, by_label(systems, "IncDSI*"), NEW)),
        judge(f"Every PromptDSI variant retains D0 as IncDSI does, {WITHIN}", gaps(variants, incdsi, D0), margin=TOLERANCE),
        judge(
            "IncDSI and every PromptDSI variant are better on new corpora than DPR",
            gaps([*incdsi, *variants], by_label(systems, "DPR"), NEW),
        ),
        judge("… and than Joint", gaps([*incdsi, *variants], by_label(systems, "Joint"), NEW)),
        judge(f"Not in the paper: every variant is better on new corpora than “{CONTROL}”", gaps(variants, control, NEW), counted=False),
        judge(f"Not in the paper: every variant retains D0 better than “{CONTROL}”", gaps(variants, control, D0), counted=False),
        *(
            judge(
                f"Not in the paper: every continual system is better on new corpora than {label}, which learns nothing",
                gaps(rivals, by_label(systems, label), NEW),
                counted=False,
            )
            for label in WITHOUT_ROWS
        ),
        judge(
            f"Not in the paper: Multi is better on new corpora than {WITH_QUERIES}, which learns nothing",
            gaps(multi, by_label(systems, WITH_QUERIES), NEW),
            counted=False,
        ),
    ]


def bert(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 2: also "Params."."""
    return [*main_table(systems), paper_sums.parameters("BERT")]


def sbert(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 3: also "Params."."""
    return [*main_table(systems), paper_sums.parameters("SBERT")]


def curves(systems: Sequence[SystemResult]) -> list[Claim]:
    """Figures 2 and 3."""
    variants, incdsi = prompted(systems), by_label(systems, "IncDSI")
    last = next((system.runs[0].last for system in systems if system.runs), 1)
    steps = [
        Gap(f"{gap.name}, t = {step}", gap.difference)
        for step in range(1, last + 1)
        for gap in gaps(variants, incdsi, after("A_t", "Hits@10", step))
    ]
    least = f"forgets as little as IncDSI, {WITHIN} of F_T"
    return [
        judge("Every PromptDSI variant is above IncDSI in A_t, after every corpus", steps),
        judge("… and in LA_T", gaps(variants, incdsi, LEARNED)),
        judge(f"Every PromptDSI variant {least}", gaps(variants, incdsi, FORGOTTEN, sign=-1.0), margin=TOLERANCE),
    ]
