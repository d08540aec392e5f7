"""Tables 2 and 3: every system after the last corpus, on D0 and on the new corpora, and the comparison with the control without prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Heading, Part, Text
from promptdsi.bench.run_records import D0Record, RunRecord, StepRecord
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, escape_markdown, row, score

from ..paper_claims import FORGETTING, expectations
from ..published import CONTROL, SOURCES, published
from ..shared import OF_P, SYSTEM, before_in_words, comparison, count, find_result, interval

SHOWN = ("Hits@10", "MRR@10", "Hits@1")
REST = ("Hits@5", "nDCG@10")


def report(results: SystemResults) -> Iterator[Part]:
    for setting, systems in results.settings():
        yield Heading(setting.label)
        yield _main(setting, systems)
        yield Text("Params. are those trained on new corpora; DPR trains its two towers on D0 alone.")
        yield before_in_words(systems)
        yield _full(setting, systems)
        yield _step_by_step(setting, systems)
        yield from _d0_seconds(results.d0.get(setting.name))
        yield _intervals(setting, systems)
        yield from _against_control(setting, systems)
        yield from _expected(systems)
        yield from _published(setting, systems)


def _scores(result: SystemResult, metrics: Sequence[str]) -> list[TableEntry | None]:
    return [result.score(measure(metric)) for measure in (on_d0, on_new) for metric in metrics]


def _columns(metrics: Sequence[str], best: str = "up") -> list[Column]:
    return [Column(on_d0(metric).name, over, best) for over in ("D0", "A_T") for metric in metrics]


def _main(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows = []
    for result in systems:
        free = result.records[0].rehearsal_free if result.records else None
        trained = result.mean_of(lambda record: record.trained_parameters)
        shown: list[TableEntry | str | None] = [
            result.label,
            *_scores(result, SHOWN),
            None if trained is None else count(trained),
            None if free is None else "✓" if free else "✗",
        ]
        rows.append(row(*shown, group=result.group, ranked=not result.reference))
    columns = [SYSTEM, *_columns(SHOWN), Column("Params."), Column("rehearsal free")]
    return Table(f"{setting.label}: after the last corpus, in per cent; best bold, second underlined, references apart", columns, rows)


def _full(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    """What the paper does not print: more metrics, and the cost."""
    rows = []
    for result in systems:
        seconds, steps = result.mean_of(lambda record: record.add_seconds), result.mean_of(_training_steps)
        speed = result.mean_of(lambda record: record.queries_per_second)
        cost = [None if number is None else f"{number:,.0f}" for number in (seconds, steps, speed)]
        shown = [result.label, result.score(FORGETTING), *_scores(result, REST), *cost, str(len(result.records))]
        rows.append(row(*shown, group=result.group, ranked=not result.reference))
    costs = ("s of all adds", "training steps", "queries/s at search", "seeds")
    columns = [SYSTEM, Column("forgetting H@10", "D0", "down"), *_columns(REST), *(Column(title) for title in costs)]
    return Table(
        f"{setting.label}: further metrics, and cost on the machine that made the runs beside other work (within about half)",
        columns,
        rows,
    )


def _training_steps(record: RunRecord) -> float:
    return sum(step.training_steps for step in record.steps)


def _step_by_step(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    """What every corpus cost: seconds, and of the training in it queries per second."""
    corpora = max((len(result.records[0].steps) for result in systems if result.records), default=0)
    rows = []
    for result in systems:
        steps = result.records[0].steps if result.records else []
        shown = [f"{step.seconds:,.1f}{_rate(step)}" for step in steps]
        first = f"{_before_d1(result.records[0]):,.1f}" if result.records else None
        rows.append(row(result.label, first, *shown, *[None] * (corpora - len(shown)), group=result.group))
    title = "seconds to learn each corpus, first seed; in brackets queries per second of training (Multi and Joint learn all at once)"
    columns = [SYSTEM, Column("before D1"), *(Column(f"D{number}") for number in range(1, corpora + 1))]
    return Table(f"{setting.label}: {title}", columns, rows)


def _before_d1(record: RunRecord) -> float:
    """Seconds a system spends on D0 beside its checkpoint, and on the search of its settings."""
    return record.fit_seconds + record.search_seconds


def _d0_seconds(record: D0Record | None) -> Iterator[Part]:
    if record is not None:
        yield Text(
            "“before D1” is what a system does with D0 beside its checkpoint: IncDSI's means and the search of its "
            "settings, topics, the vectors of Dense, all of DPR's training. "
            f"The checkpoint, from which systems with rows start, took {record.seconds:,.0f} s."
        )


def _rate(step: StepRecord) -> str:
    return f" ({step.training_queries / step.training_seconds:,.0f})" if step.training_seconds else ""


def _intervals(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows = []
    for result in systems:
        estimates = [result.estimate(measure("Hits@10")) for measure in (on_d0, on_new)]
        rows.append(row(result.label, *(None if estimate is None else interval(estimate) for estimate in estimates), group=result.group))
    columns = [SYSTEM, Column("H@10", "D0"), Column("H@10", "A_T")]
    return Table(f"{setting.label}: 95 % intervals over queries", columns, rows)


def _against_control(setting: Setting, systems: Sequence[SystemResult]) -> Iterator[Part]:
    control = find_result(systems, CONTROL)
    if control is None:
        return
    titles = ("difference", "95 % interval", "p", "verdict")
    for over, measure in (("A_T", on_new), ("D0", on_d0)):
        names = [measure(metric).name for metric in SHOWN]
        columns = [SYSTEM, *(Column(title, name, left=title == "verdict") for name in names for title in titles)]
        rivals = [result for result in systems if not result.reference and result.label != CONTROL]
        rows = [_compared(result, control, [measure(metric) for metric in SHOWN]) for result in rivals]
        yield Table(f"{setting.label}: {over} against “{CONTROL}”, in points over the same queries", columns, rows)
    yield Text(
        f"“{CONTROL}” trains the new rows and no prompt, a control the paper lacks: what it reaches, prompts do not explain. "
        f"“better” and “worse” are stated only where the interval excludes zero; {OF_P} "
        f"Prompts and “{CONTROL}” have the rates listed below; where a setting gives them one rate, another might serve either better. "
        "IncDSI's seeds differ mostly by the settings its search draws."
    )


def _compared(result: SystemResult, control: SystemResult, measures: Sequence[Measure]) -> TableRow:
    entries: list[TableEntry | str | None] = [result.label]
    for measure in measures:
        entries += comparison(result.against(control, measure))
    return row(*entries, group=result.group)


def _expected(systems: Sequence[SystemResult]) -> Iterator[Part]:
    lines = [f"- {escape_markdown(claim.text)}: **{claim.verdict}** ({escape_markdown(claim.evidence)})" for claim in expectations(systems)]
    if lines:
        yield Text("Expected from the paper, and observed:\n\n" + "\n".join(lines))


def _published(setting: Setting, systems: Sequence[SystemResult]) -> Iterator[Part]:
    source = setting.d0.stream["source"]
    name, theirs = published(setting.d0.params.get("backbone", "minilm"), source)
    rows = []
    for result in systems:
        if result.label in theirs:
            ours = [score(result.value(measure(metric))) for measure in (on_d0, on_new) for metric in ("Hits@10", "MRR@10")]
            pairs = [entry for pair in zip(theirs[result.label], ours, strict=True) for entry in pair]
            rows.append(row(result.label, *(f"{entry:.1f}" if isinstance(entry, float) else entry for entry in pairs), group=result.group))
    if rows:
        kinds = ("D0 H@10", "D0 M@10", "A_T H@10", "A_T M@10")
        columns = [SYSTEM, *(Column(whose, kind) for kind in kinds for whose in ("paper", "here"))]
        yield Table(f"{setting.label}: published figures ({name}) beside ours", columns, rows)
        if source not in SOURCES:
            yield Text("Data, backbone and scale differ from the paper's, so that only the order of systems compares, not the figures.")
