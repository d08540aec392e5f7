"""About how long missing runs take: measured times of similar runs where there are any, else a guess from documents and queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from promptdsi.bench.plan import Experiment
from promptdsi.bench.run_records import D0, D0Record, Run, RunRecord, default_params, digest
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import Params
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


def documents_of(stream: Params) -> int:
    """About how many documents a stream has that is not built yet."""
    return int(stream.get("limit", DOCUMENTS.get(stream["source"], UNKNOWN)))


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
    timing = Timing(store)
    settings = {setting.d0.key: setting for experiment in experiments for setting in experiment.settings}.values()
    groups: dict[str, list[Run]] = {}
    seen: set[str] = set()
    for experiment in experiments:
        labels = Counter(label for _, label in {(point.system.group, point.system.label) for point in experiment.points})
        for point in experiment.points:
            group, label = point.system.group, point.system.label
            prefix = f"{group}: " if labels[label] > 1 and group != label else ""  # a label may stand in several groups
            new = {run.key: run for run in point.runs if run.key not in seen}
            seen |= set(new)
            if new:
                groups.setdefault(f"{point.setting.label}: {prefix}{label}", []).extend(new.values())
    rows = []
    d0s: list[tuple[str, Sequence[D0 | Run]]] = [(f"{setting.label}: D0", [setting.d0]) for setting in settings]
    for name, runs in [*d0s, *groups.items()]:
        guesses = [timing.guess(run) for run in runs if not store.path(run.file).is_file()]
        sources = ", ".join(sorted({guess.source for guess in guesses}))
        rows.append(PlanRow(name, len(runs), len(guesses), sum((guess.seconds for guess in guesses), 0.0), sources or "measured"))
    return rows


class Timing:
    """What the recorded runs of a store took, and how many documents their streams have."""

    def __init__(self, store: RunStore) -> None:
        self.records = [record for file in store.files() if (record := store.read(file)) is not None]
        self.sizes = {digest(record.run.d0.stream): [corpus.documents for corpus in record.data.corpora] for record in self.records}
        self.works = {record.run.file: self.work(record.run) for record in self.records}

    def guess(self, run: D0 | Run) -> Guess:
        """From the most similar runs that are recorded; a D0 from another D0."""
        if isinstance(run, D0):
            return self.scaled(run, [record for record in self.records if isinstance(record, D0Record)], "another D0")
        variant = run.params.get("prompts")
        method = [record for record in self.records if isinstance(record, RunRecord) and record.run.method == run.method]
        same_d0 = [record for record in method if record.run.d0 == run.d0]
        if same := [record for record in same_d0 if (record.run.params, record.run.search) == (run.params, run.search)]:
            return Guess(float(np.mean([record.total_seconds for record in same])), "measured")
        if similar := [record for record in same_d0 if record.run.params.get("prompts") == variant] or same_d0:
            return self.scaled(run, similar, f"{run.method}{f' {variant}' if variant else ''} here")
        return self.scaled(run, method, f"{run.method} elsewhere")

    def scaled(self, run: D0 | Run, others: Sequence[RunRecord | D0Record], name: str) -> Guess:
        """Seconds in proportion to work."""
        work = self.work(run)
        ratios = [other.total_seconds / self.works[other.run.file] for other in others if self.works[other.run.file]]
        if ratios and work:
            return Guess(work * float(np.mean(ratios)), f"like {name}, scaled")
        return Guess(max(work, NO_TRAINING), "guess")

    def work(self, run: D0 | Run) -> float:
        """The seconds a run's training would take at the speeds above: documents × queries × epochs, and the size of the backbone."""
        params, stream, kind = default_params(run.method) | run.params, run.d0.stream, methods()[run.method]
        sizes = self.sizes.get(digest(stream))
        documents = sum(sizes) if sizes else documents_of(stream)
        first = sizes[0] if sizes else round(documents * (1 - stream.get("new", 5) * stream.get("share", 0.02)))
        if not issubclass(kind, DSIMethod):  # it trains D0 itself, if at all
            return NO_TRAINING * documents / 3000 + documents * ANNOTATED * float(params.get("fit.epochs", 0)) / FULL_SPEED
        is_run = isinstance(run, Run)
        learned = first if not is_run else documents if run.method == "joint" else documents - first
        queries = learned * (ANNOTATED + params["pseudo_queries"])
        epochs = params.get("add.epochs", 0) if is_run else params["fit.epochs"]
        backbone = 1.0 if params["backbone"] == "minilm" else LARGER
        speed = FROZEN_SPEED if is_run and not issubclass(kind, Sequential) else FULL_SPEED
        return float(backbone * queries * max(1, epochs) / speed)
