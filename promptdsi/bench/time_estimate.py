"""About how long missing runs take: measured times of similar runs where there are any, else a guess from documents and queries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from promptdsi.bench.plan import Experiment
from promptdsi.bench.runs import D0, Run, RunStore, default_params
from promptdsi.bench.schema import D0Description, Params, RunDescription
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.sequential import Sequential

# Queries trained on per second with MiniLM on two cores (docs/results/bench-training.md): encoder frozen, or everything trained.
FROZEN_SPEED, FULL_SPEED = 200.0, 70.0
LARGER = 8.0  # other backbones have twice the layers and twice the width of MiniLM, so about eight times the work per token
ANNOTATED = 2.0  # annotated train queries per document: squadx and NQ320k have about two
DOCUMENTS = {"demo": 352, "squadx": 9_725, "nq320k": 109_714, "msmarco300k": 321_582}  # of a stream that takes all of its source
UNKNOWN = 10_000  # documents of any other source
NO_TRAINING = 30.0  # seconds of a method that trains nothing, for 3,000 documents: it encodes or counts words

Sizes = dict[str, int]  # documents of a stream, and of its D0, by its description


class TimedRun(NamedTuple):
    """What a recorded run took, and the work it did."""

    run: D0Description
    seconds: float
    work: float


class Guess(NamedTuple):
    seconds: float
    source: str


class PlanRow(NamedTuple):
    """A D0, or a system in a setting; `seconds` are those of its missing runs."""

    what: str
    runs: int
    missing: int
    seconds: float
    source: str


def plan_rows(experiments: Sequence[Experiment], store: RunStore) -> list[PlanRow]:
    """One row per D0 and per system in a setting. A run that experiments share is counted once."""
    timed, sizes = measured(store)
    rows = []
    for setting in {setting.d0.key: setting for experiment in experiments for setting in experiment.settings}.values():
        recorded = store.d0(setting.d0) is not None
        guess = Guess(0.0, "measured") if recorded else guess_d0(setting.d0, timed, sizes)
        rows.append(PlanRow(f"{setting.label}: D0", 1, int(not recorded), guess.seconds, guess.source))
    groups: dict[str, dict[str, Run]] = {}
    seen: set[str] = set()
    for experiment in experiments:
        labels = Counter(label for _, label in {(point.system.group, point.system.label) for point in experiment.points})
        for point in experiment.points:
            group, label = point.system.group, point.system.label
            prefix = f"{group}: " if labels[label] > 1 and group != label else ""  # a label may stand in several groups
            new = {run.key: run for run in point.runs if run.key not in seen}
            seen |= set(new)
            if new:
                groups.setdefault(f"{point.setting.label}: {prefix}{label}", {}).update(new)
    for name, runs in groups.items():
        missing = [run for run in runs.values() if not store.path(run.file).is_file()]
        guesses = [guess_run(run, timed, sizes) for run in missing]
        seconds, sources = sum(guess.seconds for guess in guesses), sorted({guess.source for guess in guesses})
        rows.append(PlanRow(name, len(runs), len(missing), seconds, ", ".join(sources) or "measured"))
    return rows


def measured(store: RunStore) -> tuple[list[TimedRun], Sizes]:
    """Every recorded run with its seconds, and how many documents its stream has."""
    records = [record for file in store.files() if (record := store.read(file)) is not None]
    sizes: Sizes = {}
    for record in records:
        corpora, name = record.data.corpora, stream_name(record.run.stream)
        sizes |= {name: sum(corpus.documents for corpus in corpora), f"{name} D0": corpora[0].documents}
    return [TimedRun(record.run, record.total_seconds, work_of(record.run, sizes)) for record in records], sizes


def stream_name(stream: Params) -> str:
    return json.dumps(stream, sort_keys=True)


def guess_d0(d0: D0, timed: Sequence[TimedRun], sizes: Sizes) -> Guess:
    """From another D0 by its work, or from the speeds above."""
    return _scaled(d0.describe(), [each for each in timed if not isinstance(each.run, RunDescription)], sizes, "another D0")


def guess_run(run: Run, timed: Sequence[TimedRun], sizes: Sizes) -> Guess:
    """From the most similar runs that are recorded."""
    described, variant = run.describe(), run.params.get("prompts")
    method = [(each, each.run) for each in timed if isinstance(each.run, RunDescription) and each.run.method == run.method]
    same_d0 = [(each, other) for each, other in method if (other.stream, other.d0) == (described.stream, described.d0)]
    if same := [each.seconds for each, other in same_d0 if (other.params, other.search) == (run.params, run.search)]:
        return Guess(float(np.mean(same)), "measured")
    if similar := [each for each, other in same_d0 if other.params.get("prompts") == variant] or [each for each, _ in same_d0]:
        return _scaled(described, similar, sizes, f"{run.method}{f' {variant}' if variant else ''} here")
    return _scaled(described, [each for each, _ in method], sizes, f"{run.method} elsewhere")


def _scaled(described: D0Description, others: Sequence[TimedRun], sizes: Sizes, name: str) -> Guess:
    """Seconds in proportion to work."""
    work = work_of(described, sizes)
    if others and work:
        return Guess(work * float(np.mean([other.seconds / other.work for other in others if other.work])), f"like {name}, scaled")
    return Guess(max(work, NO_TRAINING), "guess")


def work_of(described: D0Description, sizes: Sizes) -> float:
    """The seconds a run's training would take at the speeds above: documents × queries × epochs, and the size of the backbone."""
    stream, name = described.stream, stream_name(described.stream)
    is_run = isinstance(described, RunDescription)
    method = described.method if isinstance(described, RunDescription) else "rows"
    params = default_params(method) | (described.params if isinstance(described, RunDescription) else described.d0)
    documents = sizes.get(name, int(stream.get("limit", DOCUMENTS.get(stream["source"], UNKNOWN))))
    first = sizes.get(f"{name} D0", round(documents * (1 - stream.get("new", 5) * stream.get("share", 0.02))))
    kind = methods()[method]
    if not issubclass(kind, DSIMethod):  # it trains D0 itself, if at all
        return NO_TRAINING * documents / 3000 + documents * ANNOTATED * float(params.get("fit.epochs", 0)) / FULL_SPEED
    learned = first if not is_run else documents if method == "joint" else documents - first
    queries = learned * (ANNOTATED + params["pseudo_queries"])
    epochs = params.get("add.epochs", 0) if is_run else params["fit.epochs"]
    backbone = 1.0 if params["backbone"] == "minilm" else LARGER
    speed = FROZEN_SPEED if is_run and not issubclass(kind, Sequential) else FULL_SPEED
    return float(backbone * queries * max(1, epochs) / speed)
