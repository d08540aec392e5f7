"""Tables 2 and 3: every system after the last corpus, on D0 and on the new corpora, and what the control without prompts says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from promptdsi.bench.expectations import CONTROL, LOST, expectations
from promptdsi.bench.findings import Finding, Findings, Heading, Measure, Part, Text, before_in_words, named, on_d0, on_new, total
from promptdsi.bench.plan import Setting
from promptdsi.bench.published import SOURCES, published
from promptdsi.bench.tables import Column, Entry, Line, Table, between, count, line, plain, score, signed
from promptdsi.evaluation.continual import Compared

NAME = "main"
SYSTEM = Column("system", left=True)
SHOWN = ("Hits@10", "MRR@10", "Hits@1")
REST = ("Hits@5", "nDCG@10")
OF_P = (
    "p is from a paired sign-flip test over queries, "
    "with the seeds as they are (the interval draws seeds too, so the two may differ), not corrected for the number of comparisons."
)


def parts(findings: Findings) -> Iterator[Part]:
    for setting, found in findings.settings():
        yield Heading(setting.label)
        yield _main(setting, found)
        yield Text("Params. are those trained on new corpora; DPR trains its two towers on D0 alone.")
        yield before_in_words(found)
        yield _full(setting, found)
        yield _step_by_step(setting, found)
        yield from _d0_took(findings.d0.get(setting.name))
        yield _intervals(setting, found)
        yield from _against_control(setting, found)
        yield from _expected(found)
        yield from _published(setting, found)


def _scores(found: Finding, metrics: Sequence[str]) -> list[Entry | None]:
    return [found.score(measure(metric)) for measure in (on_d0, on_new) for metric in metrics]


def _columns(metrics: Sequence[str], best: str = "up") -> list[Column]:
    return [Column(on_d0(metric).name, over, best) for over in ("D0", "A_T") for metric in metrics]


def _main(setting: Setting, found: Sequence[Finding]) -> Table:
    lines = []
    for one in found:
        free = one.records[0]["rehearsal_free"] if one.records else None
        trained = one.each(lambda record: record["trained_parameters"])
        shown: list[Entry | str | None] = [
            one.label,
            *_scores(one, SHOWN),
            None if trained is None else count(trained),
            None if free is None else "✓" if free else "✗",
        ]
        lines.append(line(*shown, group=one.group, ranked=not one.reference))
    columns = [SYSTEM, *_columns(SHOWN), Column("Params."), Column("rehearsal free")]
    return Table(f"{setting.label}: after the last corpus, in per cent; best bold, second underlined, references apart", columns, lines)


def _full(setting: Setting, found: Sequence[Finding]) -> Table:
    """What the paper does not print: more metrics, and what it cost."""
    lines = []
    for one in found:
        seconds, steps = one.each(lambda record: total(record, "seconds")), one.each(lambda record: total(record, "training_steps"))
        speed = one.each(lambda record: record["queries_per_second"])
        cost = [None if number is None else f"{number:,.0f}" for number in (seconds, steps, speed)]
        shown = [one.label, one.score(LOST), *_scores(one, REST), *cost, str(len(one.records))]
        lines.append(line(*shown, group=one.group, ranked=not one.reference))
    costs = ("s of all adds", "training steps", "queries/s at search", "seeds")
    columns = [SYSTEM, Column("lost H@10", "D0", "down"), *_columns(REST), *(Column(title) for title in costs)]
    return Table(
        f"{setting.label}: further metrics, and cost on the machine that ran the cells beside other work (good to about half)",
        columns,
        lines,
    )


def _step_by_step(setting: Setting, found: Sequence[Finding]) -> Table:
    """What every corpus cost: seconds, and of the training in it queries per second."""
    corpora = max((len(one.records[0]["steps"]) for one in found if one.records), default=0)
    lines = []
    for one in found:
        steps = one.records[0]["steps"] if one.records else []
        shown = [f"{step['seconds']:,.1f}{_rate(step)}" for step in steps]
        first = f"{_before_d1(one.records[0]):,.1f}" if one.records else None
        lines.append(line(one.label, first, *shown, *[None] * (corpora - len(shown)), group=one.group))
    title = "seconds to learn each corpus, first seed; in brackets queries per second of training (Multi and Joint learn all at once)"
    columns = [SYSTEM, Column("before D1"), *(Column(f"D{number}") for number in range(1, corpora + 1))]
    return Table(f"{setting.label}: {title}", columns, lines)


def _before_d1(record: dict[str, Any]) -> float:
    """What a system does with D0 that its checkpoint has not done, and the search of its settings."""
    return float(record.get("fit_seconds", 0.0) + record.get("search_seconds", 0.0))


def _d0_took(record: dict[str, Any] | None) -> Iterator[Part]:
    if record is not None:
        yield Text(
            "“before D1” is what a system does with D0 beside its checkpoint: IncDSI's means and the search of its "
            "settings, topics, what Dense encodes, all of DPR's training. "
            f"The checkpoint, from which systems with rows begin, took {record['seconds']:,.0f} s."
        )


def _rate(step: dict[str, Any]) -> str:
    seconds = step.get("training_seconds", 0.0)
    return f" ({step.get('training_queries', 0) / seconds:,.0f})" if seconds else ""


def _intervals(setting: Setting, found: Sequence[Finding]) -> Table:
    lines = []
    for one in found:
        estimates = [one.estimate(measure("Hits@10")) for measure in (on_d0, on_new)]
        lines.append(line(one.label, *(None if each is None else between(each) for each in estimates), group=one.group))
    columns = [SYSTEM, Column("H@10", "D0"), Column("H@10", "A_T")]
    return Table(f"{setting.label}: 95 % intervals over queries", columns, lines)


def _against_control(setting: Setting, found: Sequence[Finding]) -> Iterator[Part]:
    control = named(found, CONTROL)
    if control is None:
        return
    each = ("difference", "95 % interval", "p", "verdict")
    for over, measure in (("A_T", on_new), ("D0", on_d0)):
        names = [measure(metric).name for metric in SHOWN]
        columns = [SYSTEM, *(Column(title, name, left=title == "verdict") for name in names for title in each)]
        rivals = [one for one in found if not one.reference and one.label != CONTROL]
        lines = [_compared(one, control, [measure(metric) for metric in SHOWN]) for one in rivals]
        yield Table(f"{setting.label}: {over} against “{CONTROL}”, in points over the same queries", columns, lines)
    yield Text(
        f"“{CONTROL}” trains the new rows and no prompt, a control the paper lacks: what it reaches, prompts do not explain. "
        f"“better” and “worse” are said only where the interval excludes zero; {OF_P} "
        f"Prompts and “{CONTROL}” have the rates listed below; where a setting gives them one rate, another might serve either better. "
        "IncDSI's seeds differ mostly by the settings its search draws."
    )


def _compared(one: Finding, control: Finding, measures: Sequence[Measure]) -> Line:
    entries: list[Entry | str | None] = [one.label]
    for measure in measures:
        entries += comparison(one.against(control, measure))
    return line(*entries, group=one.group)


def comparison(found: Compared | None) -> list[Entry | str | None]:
    """Difference, interval, p-value and verdict."""
    if found is None:
        return [None] * 4
    return [
        signed(found.difference.value),
        between(found.difference, sign=True),
        "<0.001" if found.p < 0.001 else f"{found.p:.3f}",
        found.verdict,
    ]


def _expected(found: Sequence[Finding]) -> Iterator[Part]:
    said = [f"- {plain(one.claim)}: **{one.verdict}** ({plain(one.evidence)})" for one in expectations(found)]
    if said:
        yield Text("Expected and found:\n\n" + "\n".join(said))


def _published(setting: Setting, found: Sequence[Finding]) -> Iterator[Part]:
    source = setting.d0.stream["source"]
    name, theirs = published(setting.d0.params.get("backbone", "minilm"), source)
    lines = []
    for one in found:
        if one.label in theirs:
            ours = [score(one.value(measure(metric))) for measure in (on_d0, on_new) for metric in ("Hits@10", "MRR@10")]
            pairs = [entry for pair in zip(theirs[one.label], ours, strict=True) for entry in pair]
            lines.append(line(one.label, *(f"{entry:.1f}" if isinstance(entry, float) else entry for entry in pairs), group=one.group))
    if lines:
        kinds = ("D0 H@10", "D0 M@10", "A_T H@10", "A_T M@10")
        columns = [SYSTEM, *(Column(whose, kind) for kind in kinds for whose in ("paper", "here"))]
        yield Table(f"{setting.label}: published figures ({name}) beside ours", columns, lines)
        if source not in SOURCES:
            yield Text("Data, backbone and scale differ from the paper's, so that only the order of systems compares, not the figures.")
