"""About how long missing runs take: measured times of similar runs where there are any, else a guess from documents and queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from promptdsi.bench.plan import Experiment, Setting
from promptdsi.bench.run_records import D0, D0Record, Run, RunRecord, default_params, digest
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import Params
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.incdsi import IncDSI
from promptdsi.methods.sequential import Sequential

LARGER = 8.0  # other backbones have twice the layers and twice the width of MiniLM, so about eight times the work per token
ANNOTATED = {"msmarco300k": 0.9}  # annotated train queries per document; squadx and NQ320k have about two
QUERY_TOKENS = 20.0  # of a query, with padding
DOCUMENTS = {"demo": 352, "squadx": 9_725, "nq320k": 108_617, "msmarco300k": 299_424}  # of a stream that takes all of its source
OF_D0 = {"nq320k": 98_743, "msmarco300k": 289_424}  # where the source has a split of its own
TUNE = 1_000  # documents on which settings are searched, where a stream does not say how many
UNKNOWN = 10_000  # documents of any other source
NO_TRAINING = 30.0  # seconds of a method that trains nothing, for 3,000 documents: it encodes or counts words
SOLVING = 0.05  # seconds of a row that IncDSI solves: assumed, on either machine


class Machine(NamedTuple):
    """Per second: queries that MiniLM is trained on, with the encoder frozen and in full; scores of the softmax with their gradients;
    queries that doc2query-t5 writes."""

    name: str
    frozen: float
    full: float
    scores: float
    written: float


# Measured (docs/results/bench-training.md, rehearsal.md); docT5query's writing is a guess.
CPU = Machine("two cores", frozen=200.0, full=70.0, scores=8e7, written=0.5)
# Not measured. Published peaks of an A100: 312 TFLOP/s in bfloat16, 19.5 in float32, in which the softmax over rows is computed. Assumed: a
# quarter of the first for encoders, half of the second. Training MiniLM on a query is 6 · 10.6 million weights · 20 tokens operations; a
# frozen encoder gains as much as on the CPU; a score of width 768 with its gradients is 8 · 768 operations. What docT5query
# writes per second is a guess.
A100_FULL = 0.25 * 312e12 / (6 * 10.6e6 * QUERY_TOKENS)
A100 = Machine(
    "an A100 (assumed)", frozen=A100_FULL * CPU.frozen / CPU.full, full=A100_FULL, scores=0.5 * 19.5e12 / (8 * 768), written=200.0
)


def this_machine() -> Machine:
    """Any CUDA device counts as an A100."""
    import torch

    return A100 if torch.cuda.is_available() else CPU


def documents_of(stream: Params) -> int:
    """About how many documents a stream has that is not built yet."""
    return int(stream.get("limit", DOCUMENTS.get(stream["source"], UNKNOWN)))


def first_of(stream: Params) -> int:
    """About how many of them are D0."""
    share = round(documents_of(stream) * (1 - float(stream.get("new", 5) * stream.get("share", 0.02))))
    return share if {"limit", "new", "share"} & stream.keys() else OF_D0.get(stream["source"], share)


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


def plan_rows(experiments: Sequence[Experiment], store: RunStore, machine: Machine | None = None) -> list[PlanRow]:
    """One row per stream whose pseudo-queries a model writes, per D0, and per system in a setting. Shared runs are counted once.

    For a `machine` that is not this one, what was measured here does not count.
    """
    timing = Timing(store, machine or this_machine(), measured=machine is None)
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
    rows = list(timing.written(reversed(list(settings))))
    d0s: list[tuple[str, Sequence[D0 | Run]]] = [(f"{setting.label}: D0", [setting.d0]) for setting in settings]
    for name, runs in [*d0s, *groups.items()]:
        guesses = [timing.guess(run) for run in runs if not store.path(run.file).is_file()]
        sources = ", ".join(sorted({guess.source for guess in guesses}))
        rows.append(PlanRow(name, len(runs), len(guesses), sum((guess.seconds for guess in guesses), 0.0), sources or "measured"))
    return rows


class Timing:
    """What the recorded runs of a store took, and how many documents their streams have."""

    def __init__(self, store: RunStore, machine: Machine = CPU, *, measured: bool = True) -> None:
        self.machine, self.work_folder = machine, store.work
        self.records = [record for file in store.files() if (record := store.read(file)) is not None]
        self.sizes = {digest(record.run.d0.stream): [corpus.documents for corpus in record.data.corpora] for record in self.records}
        self.works = {record.run.file: self.work(record.run) for record in self.records}
        self.records = self.records if measured else []

    def written(self, settings: Iterable[Setting]) -> Iterator[PlanRow]:
        """The pseudo-queries of streams that are not built yet, where doc2query-t5 writes them; others take no time to speak of."""
        for stream, label in {digest(setting.d0.stream): (setting.d0.stream, setting.label) for setting in settings}.values():
            pseudo = stream.get("pseudo", {})
            if pseudo.get("generator") == "doc2query-t5":
                missing = not (self.work_folder / "streams" / digest(stream) / "stream.json").is_file()
                seconds = missing * documents_of(stream) * pseudo.get("per_document", 15) / self.machine.written
                yield PlanRow(f"{label}: pseudo-queries", 1, int(missing), seconds, "guess" if missing else "measured")

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
        """The seconds a run's training would take at the machine's speeds: documents × queries × epochs, and the size of the backbone."""
        params, stream, kind, machine = default_params(run.method) | run.params, run.d0.stream, methods()[run.method], self.machine
        sizes = self.sizes.get(digest(stream))
        documents, first = (sum(sizes), sizes[0]) if sizes else (documents_of(stream), first_of(stream))
        annotated = ANNOTATED.get(stream["source"], 2.0)
        backbone = {"minilm": 1.0}.get(params.get("backbone", "minilm"), LARGER)
        if not issubclass(kind, DSIMethod):  # it trains D0 itself, if at all
            encoding = CPU.full / machine.full * backbone if "backbone" in params else 1.0
            passages = 1 + (1 + params.get("hard_negatives", 0)) * params.get("passage_tokens", 0) / QUERY_TOKENS
            training = first * annotated * float(params.get("fit.epochs", 0)) * passages * backbone / machine.full
            return float(NO_TRAINING * documents / 3000 * encoding + training)
        is_run = isinstance(run, Run)
        if isinstance(run, Run) and issubclass(kind, IncDSI):
            return float(SOLVING * params["add.passes"] * (documents - first + run.search * stream.get("tune", TUNE)))
        learned = first if not is_run else documents if run.method == "joint" else documents - first
        queries = learned * (annotated + params["pseudo_queries"])
        epochs = params.get("add.epochs", 0) if is_run else params["fit.epochs"]
        speed = machine.frozen if is_run and not issubclass(kind, Sequential) else machine.full
        rows = documents if is_run else first
        return float(queries * max(1, epochs) * (backbone / speed + rows / machine.scores))
