"""Runs of an experiment on a Ray cluster: one node makes those that share a D0, several nodes different ones at the same time.

Every node sees the folders of results and of checkpoints under the same path. A run on a node that is lost goes on, on another, from its
last stage.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from promptdsi.bench.run_records import Run
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore
from promptdsi.engine.ray_store import Failure, connect
from promptdsi.errors import PromptDSIError


def run_on(url: str, runs: Sequence[Run], runner: Runner, *, fresh: bool = False, seconds: float | None = None) -> list[Path]:
    """Make the missing runs on a cluster; the files that were written. Nothing starts after so many seconds."""
    ray, _, _ = connect(url)
    store, groups = runner.store, dict[str, list[Run]]()
    for run in runs:
        runner.stream(run.d0.stream, run.split)  # written here, once: tasks that share it would write it at the same time
        groups.setdefault(run.d0.file, []).append(run)
    cores = min(int(node["Resources"]["CPU"]) for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU"))
    share = 0.6 if cores == 1 else cores - 1  # most of a node; all of it is never free where shards are served
    task = ray.remote(num_cpus=share, max_retries=-1, scheduling_strategy="SPREAD")(run_group)
    folders = store.folder.absolute(), store.work.absolute()
    ends = None if seconds is None else time.time() + seconds
    pending = [task.remote(group, *folders, runner.offline, fresh, ends) for group in groups.values()]
    written: list[Path] = []
    try:
        while pending:
            (done,), pending = ray.wait(pending)
            result = ray.get(done)
            if isinstance(result, Failure):
                raise result.to_error()
            written += result
            runner.notify(f"{len(groups) - len(pending)} of {len(groups)} groups of runs are made")
    finally:
        for call in pending:  # after an error or an interruption nothing goes on
            ray.cancel(call, force=True)
    return written


def run_group(runs: Sequence[Run], folder: Path, work: Path, offline: bool, fresh: bool, ends: float | None) -> list[Path] | Failure:
    """On a node: make the runs of one D0. Nothing starts after the time `ends`."""
    until = None if ends is None else time.monotonic() + ends - time.time()
    try:
        return Runner(RunStore(folder, work), offline=offline).run(runs, fresh=fresh, until=until)
    except (PromptDSIError, OSError) as error:
        return Failure.of(error)
