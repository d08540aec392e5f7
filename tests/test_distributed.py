"""Two processes under torchrun compute what one computes: gradients, losses, rows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import distributed_run
import pytest
import tiny
import torch
from safetensors.torch import load_file

from promptdsi.corpus.sources import Request, build_stream
from promptdsi.learning import training


def test_two_processes_give_the_same_gradients_losses_and_rows_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(Path(__file__).parent / "distributed_run.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    corpus = build_stream("demo", Request()).corpora[0]
    words = sorted({word for query in corpus.queries for word in re.findall(r"\w+", query.text.lower())})
    backbone = tiny.backbone_folder(tmp_path / "backbone", words, hidden_size=32, intermediate_size=64)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    outcome = subprocess.run(
        [*torchrun, script, str(tmp_path), str(backbone)], env=environment, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    monkeypatch.setattr(training, "_check", training._check)  # the run watches it: put back afterwards
    distributed_run.main(tmp_path, str(backbone))
    one, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1"))
    assert len(one["losses"]) == 20
    torch.testing.assert_close(first["losses"], one["losses"], rtol=1e-4, atol=0)
    torch.testing.assert_close(second["losses"], one["losses"], rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cat([first["rows"], second["rows"]]), one["rows"], atol=1e-5, rtol=0)
    gradients = [name for name in one if name.startswith("encoder.")]
    assert len(gradients) > 30
    for name in gradients:
        torch.testing.assert_close(first[name], one[name], atol=1e-5, rtol=0)
        assert torch.equal(first[name], second[name])
    assert max(float(one[name].abs().max()) for name in gradients) > 1e-3  # there was something to compare
    torch.testing.assert_close(first["learned_rows"], one["learned_rows"], atol=1e-4, rtol=1e-3)
