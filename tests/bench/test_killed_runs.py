"""A run that is killed while it trains goes on, and ends with the figures of a run that was not killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from studies import SCALE, small_study

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore

# By label: the method and its options. Rates are high, so that any other step of training would show in the ranks.
SYSTEMS = {
    "Sequential": 'method = "sequential"\nadd = { lr_scale = 100.0 }',
    "DSI++": 'method = "dsi++"\nreplay = 0.5\nadd = { lr_scale = 100.0 }',
    "Multi": 'method = "multi"\nadd = { lr_scale = 100.0 }',
    "LoRA": 'method = "lora"\nrank = 2\nadd = { lr = 0.1, row_lr = 0.3 }',
    "Rows": 'method = "rows"\nrows = { anchor_weight = 3.0, fix_row_norm = true }\nadd = { row_lr = 0.3 }',
    "Rehearsal": 'method = "rehearsal"\nrows = { replay_size = 2, replay_weight = 9.0 }\nadd = { row_lr = 0.3 }',
    "S++": 'method = "promptdsi"\nprompts = "s++"\nadd = { lr = 0.3, row_lr = 0.3 }',
    "Topic": 'method = "promptdsi"\nprompts = "topic"\nadd = { lr = 0.3, row_lr = 0.3 }',
    "DPR": 'method = "dpr"\npassage_tokens = 48\nfit = { epochs = 1, batch_size = 4, lr = 0.01 }\nencoding = { max_tokens = 24 }',
}
EXPERIMENT = 'title = "Killed"\nreport = "main"\n' + "".join(f'[[system]]\nlabel = "{label}"\n{text}\n' for label, text in SYSTEMS.items())


def test_killed_runs_go_on_and_give_the_same_figures(tmp_path: Path, backbone: str) -> None:
    folder = small_study(tmp_path, backbone)
    (folder / "killed.toml").write_text(EXPERIMENT)
    scale = SCALE.replace("BACKBONE", backbone).replace("[run]", '[run]\nkilled = ["demo"]')
    (folder / "scales/small.toml").write_text(scale.replace("add = { batch_size = 32 }", "add = { batch_size = 4, epochs = 2 }"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("killed_runs.py")
    words = [sys.executable, str(script), str(folder), str(tmp_path / "killed")]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout)
    for label, (killed, resumed, notes) in result["outcome"].items():
        # The stages before were not repeated, and the training went on in the middle.
        assert killed and resumed[0] > 0 and len(resumed) == 1, (label, resumed)
        assert (notes == []) == (label == "DPR"), label  # which is killed before its first stage is complete
    assert result["outcome"].keys() == SYSTEMS.keys() and result["left"] == []
    killed_runs, whole_runs = RunStore(tmp_path / "killed"), RunStore(tmp_path / "whole")
    runs = read_experiment(folder / "killed.toml", "small").runs
    Runner(whole_runs, offline=True).run(runs)
    for run in runs:
        after, uninterrupted = killed_runs.run(run), whole_runs.run(run)
        assert after is not None and uninterrupted is not None
        for record in (after, uninterrupted):
            record.fit_seconds = record.queries_per_second = 0.0
            for step in record.steps:
                step.seconds = step.training_seconds = 0.0
        assert after == uninterrupted, run.label
