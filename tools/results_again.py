"""Cells run again by the present code and compared, rank by rank, with what is committed.

    make results-again                                     # some cells of each kind, seed 0; writes docs/results/again.{json,md}
    python tools/results_again.py main:minilm:S++ …        # these, and only prints

D0 is read from docs/results/.work, or learned again there from its seed and compared too. No committed cell is overwritten:
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

import report

from promptdsi.bench.cells import Cell, Results, matrix_of, moved
from promptdsi.bench.findings import on_d0, on_new
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.running import Runner, versions
from promptdsi.progress import shown

ROOT = Path(__file__).resolve().parent.parent
SCALE = "squadx"
AGAIN = (
    "main:minilm:BM25 with train queries",
    "main:minilm:Rows only",
    "main:minilm:IncDSI",
    "main:minilm:S++",
    "frontier:best:best",
    "frontier:best:best, longer rows",
)
MEASURES = (on_d0("Hits@1", "D0 H@1"), on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10"))


def main(asked: Sequence[str]) -> None:
    recorded = Results(ROOT / "docs" / "results")
    with tempfile.TemporaryDirectory() as folder:
        here = Results(Path(folder), recorded.work)
        (here.folder / "cells").mkdir()
        for d0 in (recorded.folder / "cells").glob("d0-*.json"):  # so that a D0 learned again is compared with the recorded one
            shutil.copy(d0, here.folder / "cells")
        runner = Runner(here, progress=shown, say=lambda line: print(line, file=sys.stderr))
        rows = [again(name, runner, recorded) for name in asked or AGAIN]
    if asked:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        report.write("again", "Cells run again", "make results-again", rows, code=versions()["versions"]["code"], scale=SCALE)


def again(name: str, runner: Runner, recorded: Results) -> dict[str, Any]:
    """One row: the cell, and its figures as they are recorded and as they are now."""
    cell = named(name, recorded)
    before = recorded.read(cell.file)
    if before is None:
        sys.exit(f"{name} has not run yet: there is no {recorded.path(cell.file).name}")
    runner.run([cell])
    now = runner.results.read(cell.file)
    assert now is not None
    found = moved(before, now)
    if found is None:
        sys.exit(f"{name} was recorded with other queries than this stream has")
    row = {"cell": cell.file, "what": name, "code then": before["versions"]["code"], "ranks": found.of, "differ": found.ranks}
    for measure in MEASURES:
        was, is_now = (100 * float(measure.statistic(matrix_of(one, cell.split), measure.metric)[0]) for one in (before, now))
        row |= {measure.name: round(was, 3), f"{measure.name} again": round(is_now, 3)}
    return row


def named(name: str, recorded: Results) -> Cell:
    """The first seed's cell of EXPERIMENT:SETTING:SYSTEM."""
    stem, setting, label = name.split(":", 2)
    experiment = read_experiment(ROOT / "experiments" / f"{stem}.toml", SCALE, recorded)
    found = [point.cells[0] for point in experiment.points if point.setting.name == setting and point.system.label == label]
    if not found:
        sys.exit(f"{stem}.toml has no system {label!r} in the setting {setting!r}")
    return found[0]


if __name__ == "__main__":
    main(sys.argv[1:])
