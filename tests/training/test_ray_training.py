"""`promptdsi create --on ray://local`: helpers that Ray starts train with the process that creates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import small
import torch

from promptdsi import Index

pytest.importorskip("ray", reason="the extra promptdsi[ray] is not installed")
pytestmark = pytest.mark.alone  # processes that get no processor time are taken for lost


def test_create_on_a_cluster_gives_the_rows_of_one_process(tmp_path: Path) -> None:
    corpora = small.stream()
    backbone = small.backbone(tmp_path / "backbone", corpora)
    corpora[0].write(tmp_path / "d0")
    settings = [f"--set={key}={value}" for key, value in small.PARAMS.items() if key not in ("device", "offline")]
    words = ["create", str(tmp_path / "two"), str(tmp_path / "d0"), "--backbone", backbone, "--device", "cpu", "--effort", "full"]
    words += [*settings, "--set=dropout=0.0", "--on", "ray://local?shards=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "promptdsi", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert ended.returncode == 0, ended.stderr[-3000:]
    single = small.create(tmp_path / "one", corpora[0], backbone, dropout=0.0, effort="full")
    two = Index.open(tmp_path / "two", device="cpu")
    assert two.generation == 2 and two.verify().problems == []
    ours, theirs = (index.opened.method.model_.rows.blocks[0] for index in (two, single))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
