"""`torchrun -m promptdsi bench run`: two processes train D0 and whole models, the first one alone does the rest and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from studies import SCALE, small_study

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore

# LoRA's old rows are frozen, and rows alone are trained by one process: helpers wait meanwhile.
EXPERIMENT = """
title = "Several processes"
report = "main"
[[system]]
label = "Rows"
method = "rows"
[[system]]
label = "LoRA"
method = "lora"
rank = 2
[[system]]
label = "Sequential"
method = "sequential"
"""


def test_two_processes_make_the_runs_of_one(tmp_path: Path, backbone: str) -> None:
    folder = small_study(tmp_path, backbone)
    (folder / "several.toml").write_text(EXPERIMENT)
    (folder / "scales/small.toml").write_text(SCALE.replace("BACKBONE", backbone).replace("[run]", '[run]\nseveral = ["demo"]'))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "promptdsi"]
    words = ["bench", "run", str(folder / "several.toml"), "--scale", "small", "--results", str(tmp_path / "two"), "--offline", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run([*torchrun, *words], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout)["runs"] == 3  # one process writes
    runs = read_experiment(folder / "several.toml", "small").runs
    single, several = RunStore(tmp_path / "one"), RunStore(tmp_path / "two")
    Runner(single, offline=True).run(runs)
    alone, shared = single.d0(runs[0].d0), several.d0(runs[0].d0)
    assert alone is not None and shared is not None
    # Each process draws its own dropout: nearly the losses of one process, and not quite.
    assert shared.losses != alone.losses and shared.losses == pytest.approx(alone.losses, rel=0.1)
    for run in runs:
        records = [store.run(run) for store in (single, several)]
        assert all(record is not None and len(record.steps) == 2 for record in records)
