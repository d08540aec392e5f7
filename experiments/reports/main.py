"""Tables 2 and 3: every system after the last corpus; whether prompts are better than IncDSI and than controls without prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Attached, Heading, Part, Summary, Text
from promptdsi.bench.run_records import RunRecord, StepRecord
from promptdsi.bench.system_results import Measure, SystemResult, SystemResults, on_d0, on_new
from promptdsi.bench.tables import Column, Table, TableEntry, TableRow, row, score
from promptdsi.evaluation.continual import Estimate, estimate

from .. import tradeoff
from ..figures import plot
from ..paper_claims import CONTROLS, D0, FORGETTING, NEW, main_table, prompted
from ..published import CONTROL, SOURCES, published
from ..regime import regime_of
from ..shared import OF_P, SYSTEM, before_in_words, comparison, count, find_result, interval
from ..summaries import (
    D0_WORDS,
    NEW_WORDS,
    by_verdict,
    gate_of,
    listed,
    mean_difference,
    over_settings,
    regimes,
    tested,
    upper_first,
    with_interval,
)
from ..verdicts import NOT_PLANNED, Claim, judge

SHOWN = ("Hits@10", "MRR@10", "Hits@1")
REST = ("Hits@5", "nDCG@10")
RIVALS = ("IncDSI", *CONTROLS)


def report(results: SystemResults) -> Iterator[Part]:
    yield _summary(results)
    for setting, systems in results.settings():
        yield Heading(setting.label)
        yield _main(setting, systems)
        yield Text("Params. are those trained on new corpora; DPR trains its two towers on D0 alone.")
        yield before_in_words(systems)
        yield _claims(setting, claims_of(results, setting))
        yield Attached(_full(setting, systems))
        yield Attached(_step_by_step(setting, systems))
        yield from _against_control(setting, systems)
        yield from _published(setting, systems)
    yield Text(
        f"p-values of claims are corrected for how many differences a table has (Holm). “{CONTROL}” trains the new rows and no prompt: "
        "what it reaches, prompts do not explain. Further metrics, seconds, differences from this control and the paper's figures are in "
        f"{results.experiment.name}.json."
    )


def claims_of(results: SystemResults, setting: Setting) -> list[Claim]:
    """The claims of the paper's main tables and of controls, judged."""
    return judge(main_table(results.of(setting)), regime_of(results, setting))


def differences(systems: Sequence[SystemResult]) -> dict[tuple[str, Measure], Estimate]:
    """Prompts, as the mean of the variants that ran, minus IncDSI and each control, on new documents and on D0."""
    compared = {}
    for rival in RIVALS:
        for measure in (NEW, D0):
            figures = mean_difference(prompted(systems), find_result(systems, rival), measure)
            if figures is not None:
                compared[rival, measure] = estimate(figures)
    return compared


def _summary(results: SystemResults) -> Summary:
    settings = [(setting.label, systems, differences(systems)) for setting, systems in results.settings()]
    variants = dict.fromkeys(system.label for _, systems, _ in settings for system in prompted(systems) if system.records)
    compared = {setting: differences for setting, _, differences in settings}
    new = [text for rival in RIVALS if (text := over_settings(_of(compared, rival, NEW), NEW_WORDS, rival, "settings"))]
    d0 = [text for rival in RIVALS[:1] if (text := over_settings(_of(compared, rival, D0), D0_WORDS, rival, "settings"))]
    prompts = f"{listed(variants)}{', their mean' if len(variants) > 1 else ''}"
    result = (
        f"In the top ten, prompts ({prompts}; in points) retrieve {'; '.join(new)}; of D0 they retain {'; '.join(d0)}."
        if new
        else "Prompts and what they are compared with have not both run."
    )
    figure = plot(
        "systems",
        "New documents against what is retained of D0, with 95 % intervals; the dotted line is D0 before anything was added; systems that "
        "forget D0 are outside",
        partial(tradeoff.draw_settings, [(label, systems) for label, systems, _ in settings], D0, "Hits@10"),
    )
    return Summary(tested(results), result, _limits(results), figure, _short_table(results))


def _of(compared: dict[str, dict[tuple[str, Measure], Estimate]], rival: str, measure: Measure) -> dict[str, Estimate]:
    """The difference from a rival, by setting."""
    return {
        setting: difference for setting, differences in compared.items() if (difference := differences.get((rival, measure))) is not None
    }


def _limits(results: SystemResults) -> str:
    """What the records do not show: regime and gate of the settings, claims by verdict, seeds."""
    in_regime, seeds, claims = [], set(), []
    for setting, systems in results.settings():
        regime = regime_of(results, setting)
        if regime is not None and regime.moves_as_in_paper:
            in_regime.append(f"{setting.label} ratio {regime.ratio:.2g}, gate of D0 {gate_of(results, setting)}")
        seeds |= {len(system.seeds) for system in prompted(systems) if system.records}
        claims += claims_of(results, setting)
    texts = [f"that the regime is the paper's in more than how far rows move ({'; '.join(in_regime)})"] if in_regime else []
    if other := regimes(results):
        texts.append(f"prompts against IncDSI cannot be judged, because {other}")
    seeds_text = f"; prompts have {listed(map(str, sorted(seeds)), 'or')} seed{'' if seeds == {1} else 's'}" if seeds else ""
    return upper_first("; ".join([*texts, by_verdict(claims)])) + f"{seeds_text}."


def _short_table(results: SystemResults) -> Table:
    """Prompts minus each rival, and the gate, a column per setting."""
    settings = [(setting, differences(systems)) for setting, systems in results.settings()]
    rows = [
        row(f"prompts − {rival}", measure.name, *texts)
        for rival in RIVALS
        for measure in (NEW, D0)
        if any(texts := [with_interval(compared[key]) if (key := (rival, measure)) in compared else None for _, compared in settings])
    ]
    gates = [gate_of(results, setting) for setting, _ in settings]
    over = [None if gate.over_dense is None else f"{100 * gate.over_dense:+.1f}".replace("-", "−") for gate in gates]
    rows.append(row("gate: D0 − Dense, at least +5", f"D0 H@10 before, {listed(dict.fromkeys(gate.split for gate in gates))}", *over))
    rows.append(row("gate: loss of D0's last epoch, below 0.5", "", *(None if gate.loss is None else f"{gate.loss:.2f}" for gate in gates)))
    columns = [Column("compared", left=True), Column("figure", left=True), *(Column(setting.label) for setting, _ in settings)]
    return Table("Prompts, the mean of the variants that ran, minus each: points, 95 % interval", columns, rows)


def _claims(setting: Setting, claims: Sequence[Claim]) -> Table:
    rows = [row(claim.text, claim.verdict, claim.evidence) for claim in claims if claim.verdict != NOT_PLANNED]
    columns = [Column("claim", left=True), Column("verdict", left=True), Column("evidence", left=True)]
    return Table(f"{setting.label}: claims, in points of Hits@10", columns, rows)


def _scores(result: SystemResult, metrics: Sequence[str]) -> list[TableEntry | None]:
    return [result.score(measure(metric)) for measure in (on_d0, on_new) for metric in metrics]


def _columns(metrics: Sequence[str], best: str = "up") -> list[Column]:
    return [Column(on_d0(metric).name, over, best) for over in ("D0", "A_T") for metric in metrics]


def _main(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows = []
    for result in systems:
        free = result.records[0].rehearsal_free if result.records else None
        trained = result.mean_of(lambda record: record.trained_parameters)
        intervals = [None if (each := result.estimate(measure)) is None else interval(each) for measure in (D0, NEW)]
        shown: list[TableEntry | str | None] = [
            result.label,
            *_scores(result, SHOWN),
            *intervals,
            None if trained is None else count(trained),
            None if free is None else "✓" if free else "✗",
        ]
        rows.append(row(*shown, group=result.group, ranked=not result.reference))
    intervals_of = [Column("H@10, 95 %", over) for over in ("D0", "A_T")]
    columns = [SYSTEM, *_columns(SHOWN), *intervals_of, Column("Params."), Column("rehearsal free")]
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
    title = (
        "seconds to learn each corpus, first seed; in brackets queries per second of training (Multi and Joint learn all at once); before "
        "D1: IncDSI's means and the search of its settings, topics, the vectors of Dense, all of DPR's training"
    )
    columns = [SYSTEM, Column("before D1"), *(Column(f"D{number}") for number in range(1, corpora + 1))]
    return Table(f"{setting.label}: {title}", columns, rows)


def _before_d1(record: RunRecord) -> float:
    """Seconds a system spends on D0 beside its checkpoint, and on the search of its settings."""
    return record.fit_seconds + record.search_seconds


def _rate(step: StepRecord) -> str:
    return f" ({step.training_queries / step.training_seconds:,.0f})" if step.training_seconds else ""


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
        yield Attached(Table(f"{setting.label}: {over} against “{CONTROL}”, in points over the same queries; {OF_P}", columns, rows))


def _compared(result: SystemResult, control: SystemResult, measures: Sequence[Measure]) -> TableRow:
    entries: list[TableEntry | str | None] = [result.label]
    for measure in measures:
        entries += comparison(result.against(control, measure))
    return row(*entries, group=result.group)


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
        differ = "" if source in SOURCES else "; data, backbone and scale differ: only the order of systems compares"
        yield Attached(Table(f"{setting.label}: published figures ({name}) beside ours{differ}", columns, rows))
