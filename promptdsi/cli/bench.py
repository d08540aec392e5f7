"""`promptdsi bench`: the experiments. `run` fills in missing cells, `report` writes tables and figures, `plan` says how long."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import Json, Offline, Quiet, Threads, print_json, print_table, say, use_threads
from promptdsi.errors import UsageError

Experiments = Annotated[list[Path], typer.Argument(help="Experiment files, such as experiments/main.toml.", metavar="EXPERIMENT.toml…")]
Scale = Annotated[str, typer.Option("--scale", help="A file of scales/ beside the experiment: tiny, squadx, paper.")]
ResultsFolder = Annotated[Path, typer.Option("--results", help="Where cells, tables and figures are kept.", metavar="DIR")]
Work = Annotated[Path | None, typer.Option("--work", help="Where D0 checkpoints are kept; RESULTS/.work unless given.", metavar="DIR")]


def run(
    experiments: Experiments,
    scale: Scale = "squadx",
    results: ResultsFolder = Path("results"),
    work: Work = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Systems to run, by label; repeatable.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--setting", help="Settings of the scale to run in; repeatable.")] = None,
    hours: Annotated[float | None, typer.Option("--hours", min=0, help="Begin no cell after this long.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run cells again that are there already.")] = False,
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment's missing cells, one JSON file each. Interrupted, the same command goes on with the next."""
    import time

    use_threads(threads)
    from promptdsi.bench.cells import Results
    from promptdsi.bench.plan import cells_of, read_experiment
    from promptdsi.bench.running import Runner
    from promptdsi.progress import shown, silent

    read = [read_experiment(path, scale, Results(results)) for path in experiments]
    points = [point for one in read for point in one.points]
    for what, asked, known in (
        ("system", only, {cell.label for point in points for cell in point.cells}),
        ("setting", setting, {where.name for one in read for where in one.settings}),
    ):
        if unknown := sorted(set(asked or ()) - known):
            raise UsageError(f"no {what} {unknown[0]!r}; there are {', '.join(sorted(known))}")
    here = [point for point in points if (not setting or point.setting.name in setting) and (not only or point.cells[0].label in only)]
    cells = cells_of(here)
    if only and setting and not cells:
        raise UsageError(f"{', '.join(only)} do not run in {', '.join(setting)}")
    runner = Runner(Results(results, work), offline=offline, progress=silent if quiet else shown, say=lambda line: say(line, quiet=quiet))
    ends = None if hours is None else time.monotonic() + 3600 * hours
    for where in (where for one in read if not one.cells for where in one.settings if not setting or where.name in setting):
        runner.d0(where.d0)  # an experiment about the data alone: no cell will ask for it
    written = runner.run(cells, fresh=fresh, until=ends)
    if json:
        print_json({"written": [path.name for path in written], "cells": len(cells)})
    else:
        waiting = sum(not runner.results.path(cell.file).is_file() for cell in cells)
        there = len(cells) - len(written) - waiting
        print(f"{len(written)} cells run, {there} were there, {waiting} wait; promptdsi bench report writes the tables")


def report(
    experiments: Experiments,
    scale: Scale = "squadx",
    results: ResultsFolder = Path("results"),
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write an experiment's tables (Markdown, LaTeX) and figures (PNG, SVG) from its cells alone."""
    from promptdsi.bench.cells import Results
    from promptdsi.bench.plan import read_experiment
    from promptdsi.bench.reporting import write_report

    for path in experiments:
        written = write_report(read_experiment(path, scale, Results(results)), Results(results))
        if json:
            print_json({"experiment": path.stem, "written": [str(file) for file in written]})
        else:
            print(f"{path.stem}: {', '.join(file.name for file in written)}")


def plan(
    experiments: Experiments,
    scale: Scale = "squadx",
    results: ResultsFolder = Path("results"),
    json: Json = False,
) -> None:
    """What would be run, and about how many hours it takes: measured times of like cells where there are any."""
    from promptdsi.bench.cells import Results
    from promptdsi.bench.hours import expected
    from promptdsi.bench.plan import read_experiment

    rows = expected([read_experiment(path, scale, Results(results)) for path in experiments], Results(results))
    if json:
        print_json({"plan": rows, "hours": round(sum(row["hours"] for row in rows), 2)})
        return
    shown = [row | {"hours": f"{row['hours']:.2f}"} for row in rows]
    sums = {column: sum(row[column] for row in rows) for column in ("cells", "missing", "hours")}
    total = {"what": "all", **sums, "hours": f"{sums['hours']:.2f}", "from": ""}
    print_table(f"{scale}: hours still to run on this machine", [*shown, total], total=True)
