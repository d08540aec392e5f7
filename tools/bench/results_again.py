"""Runs made again by the present code and compared, rank by rank, with what is committed.

    make results-again                                               # some runs of each kind, seed 0; writes docs/results/again.{json,md}
    python -m tools.bench.results_again main:minilm:S++ …            # these, and only prints

D0 is read from docs/results/.work, or learned again there from its seed and compared too. No committed record is overwritten:
the runs go to a temporary folder. Trained on another processor, weights differ in their last bits, and a few ranks with them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.run_records import Run
from promptdsi.bench.runner import Runner, versions
from promptdsi.bench.runs import RunStore, compare_ranks, matrix_of
from promptdsi.bench.system_results import on_d0, on_new
from promptdsi.progress import shown
from tools import evidence

ROOT = Path(__file__).resolve().parents[2]
SCALE = "squadx"
AGAIN = (
    "main:minilm:BM25 with train queries",
    "main:minilm:Rows only",
    "main:minilm:IncDSI",
    "main:minilm:S++",
    "frontier:best:best",
    "frontier:best:best, larger row norm",
)
MEASURES = (on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10"), on_new("Hits@1", "A_T H@1"), on_new("Hits@10", "A_T H@10"))


def main(names: Sequence[str]) -> None:
    recorded = RunStore(ROOT / "docs" / "results")
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder), recorded.work)
        (store.folder / "runs").mkdir()
        for d0 in (recorded.folder / "runs").glob("d0-*.json"):  # so that a D0 learned again is compared with the recorded one
            shutil.copy(d0, store.folder / "runs")
        runner = Runner(store, progress=shown, notify=lambda line: print(line, file=sys.stderr))
        rows = [again(name, runner, recorded) for name in names or AGAIN]
    if names:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        evidence.write("again", "Runs made again", "make results-again", rows, code=versions()["code"], scale=SCALE)


def again(name: str, runner: Runner, recorded: RunStore) -> dict[str, Any]:
    """One row: the run, and its figures as they are recorded and as they are now."""
    run = find_run(name, recorded)
    before = recorded.run(run)
    if before is None:
        sys.exit(f"{name} has not run yet: there is no {recorded.path(run.file).name}")
    runner.run([run])
    now = runner.store.run(run)
    assert now is not None
    difference = compare_ranks(before, now)
    if difference is None:
        sys.exit(f"{name} was recorded with other queries than this stream has")
    row = {"run": run.file, "what": name, "code then": before.versions["code"], "ranks": difference.of, "differ": difference.ranks}
    for measure in MEASURES:
        was, is_now = (100 * float(measure.statistic(matrix_of(record, run.split), measure.metric)[0]) for record in (before, now))
        row |= {measure.name: round(was, 3), f"{measure.name} again": round(is_now, 3)}
    return row


def find_run(name: str, recorded: RunStore) -> Run:
    """The first seed's run of EXPERIMENT:SETTING:SYSTEM."""
    stem, setting, label = name.split(":", 2)
    experiment = read_experiment(ROOT / "experiments" / f"{stem}.toml", SCALE, recorded)
    runs = [point.runs[0] for point in experiment.points if point.setting.name == setting and point.system.label == label]
    if not runs:
        sys.exit(f"{stem}.toml has no system {label!r} in the setting {setting!r}")
    return runs[0]


if __name__ == "__main__":
    main(sys.argv[1:])
