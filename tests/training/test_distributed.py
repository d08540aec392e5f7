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
from promptdsi.training import training


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
    monkeypatch.setattr(training, "_check_finite", training._check_finite)  # the run watches it: put back afterwards
    distributed_run.main(tmp_path, str(backbone))
    single, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1"))
    assert len(single["losses"]) == 20
    torch.testing.assert_close(first["losses"], single["losses"], rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cat([first["rows"], second["rows"]]), single["rows"], atol=1e-5, rtol=0)
    gradients = [name for name in single if name.startswith("encoder.")]
    assert len(gradients) > 30
    for name in gradients:
        torch.testing.assert_close(first[name], single[name], atol=1e-5, rtol=0)
        assert torch.equal(first[name], second[name])
    assert max(float(single[name].abs().max()) for name in gradients) > 1e-3  # there was something to compare
    torch.testing.assert_close(first["learned_rows"], single["learned_rows"], atol=1e-4, rtol=1e-3)


def test_torchrun_create_commits_once_and_only_the_first_process_reads(tmp_path: Path) -> None:
    """Two processes learn D0 together; what is committed equals what one process commits, to rounding."""
    import small

    from promptdsi import Index

    corpora = small.stream()
    backbone = small.backbone(tmp_path / "backbone", corpora)
    corpora[0].write(tmp_path / "d0")
    corpora[1].write(tmp_path / "d1")
    chosen = small.PARAMS | {"dropout": 0.0, "fit_epochs": 2}
    settings = [word for key, value in chosen.items() if key not in ("device", "offline") for word in ("--set", f"{key}={value}")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "promptdsi"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    create = ["create", str(tmp_path / "two"), str(tmp_path / "d0"), "--backbone", backbone, "--device", "cpu", *settings]
    for words in (create, ["add", str(tmp_path / "two"), str(tmp_path / "d1"), "--device", "cpu"]):
        outcome = subprocess.run([*torchrun, *words], env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert outcome.returncode == 0, outcome.stderr[-3000:]
    two = Index.open(tmp_path / "two", device="cpu")
    assert two.generation == 2 and two.verify().problems == [] and outcome.stderr.count("generation 2: added d1") == 1
    single = small.create(tmp_path / "one", corpora[0], backbone, dropout=0.0, fit_epochs=2)
    for ours, theirs in zip(two.opened.method.model_.rows.blocks[0], single.opened.method.model_.rows.blocks[0], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_no_thread_of_the_connections_outlives_them(tmp_path: Path) -> None:
    """One that did could abort the process at its end, as one run in twelve was: torch's first optimizer kept the connections."""
    script = tmp_path / "threads.py"
    script.write_text(
        """
from pathlib import Path
import torch
from promptdsi.training.distributed import join, work_alone

def threads() -> list[str]:
    return [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]

join().sum(torch.ones(1))
assert any("gloo" in name for name in threads())
torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
work_alone()
assert not [name for name in threads() if "gloo" in name], threads()
"""
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    outcome = subprocess.run([*torchrun, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
