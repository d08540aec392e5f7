"""About how long missing cells take: measured times of like cells where there are any, else a guess from documents and queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from promptdsi.bench.cells import D0, Cell, Results, options_of
from promptdsi.bench.plan import Experiment, Setting
from promptdsi.methods import methods
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.sequential import Sequential

# Queries trained on per second with MiniLM on two cores (docs/results/bench-training.md): encoder frozen, or everything trained.
FROZEN_SPEED, FULL_SPEED = 200.0, 70.0
# The other backbones have twice the layers and twice the width of MiniLM, so about eight times the work per token.
LARGER = 8.0
ANNOTATED = 2.0  # annotated train queries per document: squadx and NQ320k have about two
DOCUMENTS = {"demo": 352, "squadx": 9_725, "nq320k": 109_714, "msmarco300k": 321_582}  # of a stream that takes all of its source
UNKNOWN = 10_000  # of any other source
NO_TRAINING = 30.0  # seconds of a method that trains nothing, for 3,000 documents: it encodes or counts words


class Timed(NamedTuple):
    """What a recorded run took, and the work it did for that."""

    cell: dict[str, Any]
    seconds: float
    work: float


class Guess(NamedTuple):
    seconds: float
    source: str


def expected(experiments: Sequence[Experiment], results: Results) -> list[dict[str, Any]]:
    """A line per D0 and per system in a setting; `hours` are those of missing cells. A cell that experiments share is counted once."""
    timed, sizes = measured(results)
    rows, seen = [], set()
    for setting in {one.d0.key: one for experiment in experiments for one in experiment.settings}.values():
        record = results.read(setting.d0.file)
        guess = Guess(0.0, "measured") if record else d0_guess(setting.d0, timed, sizes)
        rows.append(_row(f"{setting.label}: D0", 1, 0 if record else 1, guess))
    groups: dict[tuple[str, str, str], tuple[Setting, list[Cell]]] = {}
    for experiment in experiments:
        for point in experiment.points:
            name = (point.setting.name, point.system.group if experiment.report == "ablations" else "", point.system.label)
            for cell in point.cells:
                if cell.key not in seen:
                    seen.add(cell.key)
                    groups.setdefault(name, (point.setting, []))[1].append(cell)
    for (_, group, label), (setting, cells) in groups.items():
        missing = [cell for cell in cells if not results.path(cell.file).is_file()]
        guesses = [cell_guess(cell, timed, sizes) for cell in missing]
        sources = sorted({guess.source for guess in guesses})
        whole = Guess(sum(guess.seconds for guess in guesses), ", ".join(sources) or "measured")
        rows.append(_row(f"{setting.label}: {f'{group}: ' if group and group != label else ''}{label}", len(cells), len(missing), whole))
    return rows


def _row(what: str, cells: int, missing: int, guess: Guess) -> dict[str, Any]:
    return {"what": what, "cells": cells, "missing": missing, "hours": round(guess.seconds / 3600, 4), "from": guess.source}


def measured(results: Results) -> tuple[list[Timed], dict[str, int]]:
    """Every recorded run with its seconds, and how many documents a stream has, by its description."""
    timed, sizes = [], {}
    records = [results.read(path.stem) for path in sorted((results.folder / "cells").glob("*.json"))]
    for record in records:
        if record is not None:
            data = record["data"]
            stream = data["sizes"][: len(next(iter(data["queries"].values())))]
            sizes[name_of(record["cell"]["stream"])] = sum(corpus["documents"] for corpus in stream)
            sizes[name_of(record["cell"]["stream"]) + " D0"] = stream[0]["documents"]
    for record in records:
        if record is not None:
            timed.append(Timed(record["cell"], seconds_of(record), work_of(record["cell"], sizes)))
    return timed, sizes


def seconds_of(record: dict[str, Any]) -> float:
    """What a run took: of a D0, its training; of a cell, beginning, search of settings and every step."""
    if "steps" not in record or not isinstance(record["steps"], list):
        return float(record["seconds"])
    return float(record.get("fit_seconds", 0.0) + record.get("search_seconds", 0.0) + sum(step["seconds"] for step in record["steps"]))


def name_of(stream: dict[str, Any]) -> str:
    return json.dumps(stream, sort_keys=True)


def d0_guess(d0: D0, timed: Sequence[Timed], sizes: dict[str, int]) -> Guess:
    """From another D0 by its work, or from the speeds above."""
    cell = {"stream": d0.stream, "d0": d0.params}
    return _scaled(cell, [one for one in timed if "method" not in one.cell], sizes, "another D0")


def cell_guess(cell: Cell, timed: Sequence[Timed], sizes: dict[str, int]) -> Guess:
    """From the likest cells that have run."""
    asked = cell.describe()
    here = [one for one in timed if one.cell.get("method") == cell.method and all(one.cell[key] == asked[key] for key in ("stream", "d0"))]
    same = [one for one in here if one.cell["params"] == cell.params and one.cell["search"] == cell.search]
    if same:
        return Guess(float(np.mean([one.seconds for one in same])), "measured")
    variant = cell.params.get("prompts")
    if like := [one for one in here if one.cell["params"].get("prompts") == variant] or here:
        return _scaled(asked, like, sizes, f"{cell.method}{f' {variant}' if variant else ''} here")
    return _scaled(asked, [one for one in timed if one.cell.get("method") == cell.method], sizes, f"{cell.method} elsewhere")


def _scaled(cell: dict[str, Any], others: Sequence[Timed], sizes: dict[str, int], name: str) -> Guess:
    """Seconds in proportion to work."""
    work = work_of(cell, sizes)
    if others and work:
        return Guess(work * float(np.mean([one.seconds / one.work for one in others if one.work])), f"like {name}, scaled")
    return Guess(max(work, NO_TRAINING), "guess")


def work_of(cell: dict[str, Any], sizes: dict[str, int]) -> float:
    """The seconds a run's training would take at the speeds above: documents × queries × epochs, and the size of the backbone."""
    stream, method = cell["stream"], cell.get("method", "rows")
    params = cell["d0"] | cell.get("params", {})
    everything = sizes.get(name_of(stream), int(stream.get("limit", DOCUMENTS.get(stream["source"], UNKNOWN))))
    new = stream.get("new", 5) * stream.get("share", 0.02)
    first = sizes.get(name_of(stream) + " D0", round(everything * (1 - new)))
    kind = methods()[method]
    if not issubclass(kind, DSIMethod):  # it trains D0 itself, if at all
        return NO_TRAINING * everything / 3000 + everything * ANNOTATED * float(_option(method, params, "fit_epochs")) / FULL_SPEED
    is_d0, full = "method" not in cell, issubclass(kind, Sequential)
    documents = first if is_d0 else everything if method == "joint" else everything - first
    more = _option(method, params, "add_pseudo_factor") if not is_d0 and "add_pseudo_factor" in options_of(method) else 1
    queries = documents * (ANNOTATED + more * _option("rows", params, "pseudo_queries"))
    epochs = _option("rows", params, "fit_epochs") if is_d0 else _option(method, params, "add_epochs")
    backbone = 1.0 if _option("rows", params, "backbone") == "minilm" else LARGER
    return float(backbone * queries * max(1, epochs) / (FULL_SPEED if is_d0 or full else FROZEN_SPEED))


def _option(method: str, params: dict[str, Any], name: str) -> Any:
    """A keyword as given, or its default; 0 where the method has no such keyword."""
    known = options_of(method)
    return params.get(name, known[name]) if name in known else 0
