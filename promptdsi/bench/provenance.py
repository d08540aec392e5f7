"""Where the numbers of a report come from: commands, versions, data, parameters, and how many hyper-parameter settings were looked at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from promptdsi.bench.plan import Setting, read_experiment
from promptdsi.bench.run_records import D0Record, RunRecord, StreamData
from promptdsi.bench.schema import ExperimentFile, Params, read_toml
from promptdsi.bench.system_results import SystemResults
from promptdsi.evaluation.continual import RESAMPLES

FORMULAS = (
    "A_t is the mean over the corpora D1 to Dt as they stand after step t, without D0, each corpus counting the same (macro average)",
    "LA_t is the same mean with each corpus just after it was learned",
    "F_t is the mean over D0 to D(t−1) of the drop from the best earlier step i' ≥ i; D0 is in it, and it is negative where figures rose",
    "forgetting of D0 is P[0][0] − P[T][0]; the paper prints the opposite sign",
)


def hyper_parameters(results: SystemResults) -> list[str]:
    """How many hyper-parameter settings were looked at, and on which split: sweeps, searches, and what the scale says of itself."""
    experiment, lines = results.experiment, []
    choice = read_toml(experiment.path, ExperimentFile).chosen_by
    swept_in = read_experiment(experiment.path.parent / f"{choice}.toml", experiment.scale) if choice else experiment
    labels = {point.system.label for point in experiment.points}
    counts = Counter(point.system.label for point in swept_in.points if point.system.parameter and point.system.label in labels)
    if counts:
        names = ", ".join(f"{label} {count}" for label, count in counts.items())
        tried = f"{counts.total()} settings on {swept_in.split} queries of {', '.join(setting.label for setting in swept_in.settings)}"
        use = "one value of each system is chosen by a rule" if choice or swept_in.split == "dev" else "they are compared, none is chosen"
        lines.append(f"{tried} ({names}); {use}")
    by_text: dict[str, list[str]] = {}
    for setting, _ in results.settings():
        if setting.tuning:
            by_text.setdefault(setting.tuning, []).append(setting.label)
    lines += [f"{'; '.join(labels)}: {text}" for text, labels in by_text.items()]
    searched = Counter((result.point.system.label, record.run.search) for result in results.all for record in result.records)
    tries = [f"{label} {number} in each of its runs ({count})" for (label, number), count in searched.items() if number]
    if tries:
        lines.append(f"searched on held-out documents that are in no corpus: {', '.join(tries)}")
    return lines or ["no other value was looked at, as far as records show"]


def query_counts(results: SystemResults) -> dict[str, tuple[int, int]]:
    """How many queries of the experiment's split D0 has, and all new corpora together, by the label of each stream that has run."""
    counts: dict[str, tuple[str, tuple[int, int]]] = {}
    for setting in results.experiment.settings:
        if data := _data(results.records(setting), results.experiment.split):
            d0, *new = (getattr(corpus, results.experiment.split) for corpus in data.corpora)
            counts.setdefault(json.dumps(setting.d0.stream, sort_keys=True), (setting.label, (d0, sum(new))))
    return dict(counts.values())


def provenance(results: SystemResults) -> list[str]:
    """Where every number above comes from."""
    experiment = results.experiment
    records = [record for setting in experiment.settings for record in results.records(setting)]
    points = [
        f"runs: `{experiment.command('run')}`",
        f"this file: `{experiment.command('report')}`",
        *(f"{name}: {distinct_versions(records, name)}" for name in ("promptdsi", "code", "python", "torch", "transformers")),
        f"parameters of every system: {experiment.name}.json; those that are not named there have the defaults of the method's class, "
        "which are the paper's",
    ]
    if experiment.points:
        points += [
            *FORMULAS,
            f"figures are per cent of the {experiment.split} queries; "
            f"intervals are 95 % percentile intervals over {RESAMPLES:,} bootstrap resamples "
            "of queries, the same draws for every system, so that differences are paired; where a system has several seeds it is their "
            "mean, and resamples draw seeds too (three are few); with one seed an interval is about that run",
            "± is the sample standard deviation (ddof = 1) over seeds of the continual stage; D0 is learned once and shared by all, "
            "except where several D0 checksums are given: then it was learned again from the same seed when the first was gone",
        ]
    settings = ("\n".join(_setting_provenance(results, setting)) for setting in experiment.settings)
    tuning = ["## Hyper-parameters", "Settings that were looked at:", _listed(hyper_parameters(results))]
    return [*tuning, "## Where this comes from", _listed(points), *filter(None, settings)]


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _data(records: Sequence[RunRecord | D0Record], split: str) -> StreamData | None:
    """The data of a setting; D0 alone is evaluated on the dev split."""
    return next((record.data for record in records if split in record.data.queries), records[0].data if records else None)


def _setting_provenance(results: SystemResults, setting: Setting) -> Iterator[str]:
    records, split = results.records(setting), results.experiment.split
    data = _data(records, split)
    if data is None:
        return
    shown = split if split in data.queries else next(iter(data.queries))
    yield f"### {setting.label}\n"
    yield f"- stream {data.stream}: `{json.dumps(setting.d0.stream, sort_keys=True)}`"
    yield f"- D0 learned with `{json.dumps(setting.d0.params, sort_keys=True)}`"
    yield "- documents: " + ", ".join(f"{corpus.corpus} {corpus.documents:,}" for corpus in data.corpora)
    yield f"- n of {shown} queries: " + ", ".join(f"{corpus.corpus} {getattr(corpus, shown):,}" for corpus in data.corpora)
    yield f"- checksums of {shown} queries: " + " ".join(f"`{checksum[:8]}`" for checksum in data.queries[shown])
    checksums = {record.sha256 if isinstance(record, D0Record) else record.d0_sha256 for record in records}
    yield "- D0 checksum: " + (", ".join(f"`{checksum[:12]}`" for checksum in sorted(filter(None, checksums))) or "none")
    if seeds := sorted({seed for result in results.of(setting) for seed in result.seeds}):
        yield "- seeds: " + ", ".join(str(seed) for seed in seeds)


def system_params(results: SystemResults) -> dict[str, list[Params]]:
    """By setting: each system with the parameters that differ from D0's and from the defaults, the settings searched for it, its code."""
    by_setting: dict[str, list[Params]] = {}
    for setting, systems in results.settings():
        for result in systems:
            if result.records:
                params = {name: value for name, value in result.records[0].run.params.items() if setting.d0.params.get(name) != value}
                described = {"system": result.label, "group": result.group, "method": result.point.system.method, "params": params}
                searched = [record.searched.chosen for record in result.records if record.searched]
                code = {"searched": searched, "seeds": result.seeds, "code": distinct_versions(result.records, "code")}
                by_setting.setdefault(setting.label, []).append(described | code)
    return by_setting


def distinct_versions(records: Sequence[RunRecord | D0Record], name: str) -> str:
    return ", ".join(sorted({record.versions[name] for record in records}))
