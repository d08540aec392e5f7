"""Run by test_killed_runs.py: every run of an experiment in a child process that is killed while it trains, then again to the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.run_records import Run
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore
from promptdsi.training import checkpoint

checkpoint.SECONDS_BETWEEN_CHECKPOINTS, checkpoint.MOST_TIME = 0.0, 1e9  # after every step, as if each took minutes


class Trainings:
    """A progress that counts trainings and their steps, and kills the process in the middle of one."""

    def __init__(self, kill_in: int = 0) -> None:
        self.kill_in = kill_in
        self.resumed: list[int] = []  # of each training the steps that were done before

    @contextlib.contextmanager
    def __call__(self, what: str, *, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], None]]:
        if unit != "steps":
            yield lambda count: None
            return
        done: list[int] = []

        def advance(count: int) -> None:
            done.append(count)
            if len(self.resumed) + 1 == self.kill_in and sum(done) > (total or 0) // 2:
                os.kill(os.getpid(), signal.SIGKILL)

        yield advance
        self.resumed.append(done[0])


def killed(store: RunStore, run: Run, kill_in: int) -> bool:
    """Make a run in a child process; whether it was killed."""
    child = os.fork()
    if child == 0:
        Runner(store, offline=True, progress=Trainings(kill_in)).run([run])
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def main(folder: Path, results: Path) -> None:
    store = RunStore(results)
    outcome: dict[str, list[object]] = {}
    runs = read_experiment(folder / "killed.toml", "small").runs
    Runner(store, offline=True).d0(runs[0].d0)
    for run in runs:
        at_once = run.method in ("multi", "joint", "dpr")  # one training in all
        trainings = Trainings()
        notes: list[str] = []
        was_killed = killed(store, run, 1 if at_once else 2)
        Runner(store, offline=True, progress=trainings, notify=notes.append).run([run])
        outcome[run.label] = [was_killed, trainings.resumed, [note for note in notes if "goes on" in note]]
    print(json.dumps({"outcome": outcome, "left": [path.name for path in store.work.glob("*.unfinished")]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
