"""`promptdsi bench`: experiments. `run` makes missing runs, `report` writes tables and figures, `plan` estimates the hours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.add_command import helped
from promptdsi.cli.console import Json, Offline, Output, Threads, print_json, print_table, use_threads
from promptdsi.errors import UsageError
from promptdsi.wording import counted

if TYPE_CHECKING:
    from promptdsi.bench.plan import Experiment, Point
    from promptdsi.bench.run_records import Run
    from promptdsi.bench.runner import Runner

Experiments = Annotated[list[Path], typer.Argument(help="Experiment files, such as experiments/main.toml.", metavar="EXPERIMENT.toml…")]
Scale = Annotated[str, typer.Option("--scale", help="A file of scales/ beside the experiment: tiny, squadx, paper.")]
ResultsFolder = Annotated[Path, typer.Option("--results", help="Folder of run records, tables and figures.", metavar="DIR")]
Work = Annotated[Path | None, typer.Option("--work", help="Folder of D0 checkpoints (default: RESULTS/.work).", metavar="DIR")]


def run(
    experiments: Experiments,
    *,
    scale: Scale = "squadx",
    results: ResultsFolder = Path("results"),
    work: Work = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Systems to run, by label; repeatable.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--setting", help="Settings of the scale to run in; repeatable.")] = None,
    hours: Annotated[float | None, typer.Option("--hours", min=0, help="Start no run after this many hours.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make runs again that are recorded already.")] = False,
    on: Annotated[str | None, typer.Option("--on", help="Cluster to run on: ray://HOST:PORT (see docs/cluster.md).", metavar="URL")] = None,
    threads: Threads = None,
    offline: Offline = False,
    output: Output,
) -> None:
    """Make an experiment's missing runs, one JSON file each. Interrupted or killed, the same command goes on from the last stage."""
    use_threads(threads)
    if helped():
        return
    from promptdsi.bench.plan import read_experiment, unique_runs
    from promptdsi.bench.runner import Runner
    from promptdsi.bench.runs import RunStore
    from promptdsi.training.distributed import leading

    read = [read_experiment(path, scale, RunStore(results)) for path in experiments]
    runs = unique_runs(_selected(read, only or [], setting or []))
    if only and setting and not runs:
        raise UsageError(f"{', '.join(only)} do not run in {', '.join(setting)}")
    store = RunStore(results, work)
    runner = Runner(store, offline=offline, progress=output.progress, notify=output.say)
    with leading():  # under torchrun the other processes help where encoder and all rows train
        for experiment in read:
            for place in experiment.settings:
                if not experiment.runs and (not setting or place.name in setting):
                    runner.d0(place.d0)  # an experiment about the data alone: no run will learn it
        written = _make(runs, runner, on, hours, fresh=fresh)
    if output.json:
        print_json({"written": [path.name for path in written], "runs": len(runs)})
    else:
        missing = sum(not store.path(run.file).is_file() for run in runs)
        before = len(runs) - len(written) - missing
        print(f"{counted(len(written), 'run')} made, {before} recorded before, {missing} left; promptdsi bench report writes the tables")


def _make(runs: list[Run], runner: Runner, on: str | None, hours: float | None, *, fresh: bool) -> list[Path]:
    """Make the missing runs here or on a cluster."""
    if on is None:
        return runner.run(runs, fresh=fresh, until=None if hours is None else time.monotonic() + 3600 * hours)
    from promptdsi.bench.cluster_runs import run_on

    return run_on(on, runs, runner, fresh=fresh, seconds=None if hours is None else 3600 * hours)


def _selected(experiments: list[Experiment], only: list[str], setting: list[str]) -> list[Point]:
    """The points of the systems and settings given with --only and --setting."""
    points = [point for experiment in experiments for point in experiment.points]
    for what, names, valid in (
        ("system", only, {run.label for point in points for run in point.runs}),
        ("setting", setting, {place.name for experiment in experiments for place in experiment.settings}),
    ):
        if unknown := sorted(set(names) - valid):
            raise UsageError(f"no {what} {unknown[0]!r}; there are {', '.join(sorted(valid))}")
    return [point for point in points if (not setting or point.setting.name in setting) and (not only or point.runs[0].label in only)]


def report(
    experiments: Experiments,
    *,
    scale: Scale = "squadx",
    results: ResultsFolder = Path("results"),
    work: Work = None,
    queries: Annotated[bool, typer.Option("--queries", help="Show queries of the data where a table has room for examples.")] = False,
    output: Output,
) -> None:
    """Write an experiment's tables (Markdown, LaTeX) and figures (PNG, SVG) from its run records alone."""
    from promptdsi.bench.plan import read_experiment
    from promptdsi.bench.report import write_report
    from promptdsi.bench.runs import RunStore

    for path in experiments:
        written = write_report(read_experiment(path, scale, RunStore(results)), RunStore(results, work), queries=queries)
        if output.json:
            print_json({"experiment": path.stem, "written": [str(file) for file in written]})
        else:
            print(f"{path.stem}: {', '.join(file.name for file in written)}")


def plan(
    experiments: Experiments,
    *,
    scale: Scale = "squadx",
    results: ResultsFolder = Path("results"),
    gpu: Annotated[bool, typer.Option("--gpu", help="Estimate for an A100-class GPU, whatever this machine has.")] = False,
    json: Json = False,
) -> None:
    """Show what would be run and about how many hours it takes: measured times of similar runs where there are any."""
    from promptdsi.bench.plan import read_experiment
    from promptdsi.bench.runs import RunStore
    from promptdsi.bench.time_estimate import A100, plan_rows, this_machine

    store = RunStore(results)
    rows = plan_rows([read_experiment(path, scale, store) for path in experiments], store, A100 if gpu else None)
    machine = A100 if gpu else this_machine()
    total = sum(row.seconds for row in rows) / 3600
    columns: list[dict[str, Any]] = [
        {"what": row.what, "runs": row.runs, "missing": row.missing, "hours": round(row.seconds / 3600, 4), "from": row.source}
        for row in rows
    ]
    if json:
        print_json({"plan": columns, "hours": round(total, 2), "machine": machine.name})
        return
    totals = {"what": "all", "runs": sum(row.runs for row in rows), "missing": sum(row.missing for row in rows), "hours": total, "from": ""}
    table = [row | {"hours": f"{row['hours']:.2f}"} for row in [*columns, totals]]
    print_table(f"{scale}: hours still to run on {machine.name}", table, total=True)
