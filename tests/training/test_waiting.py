"""Threads wait for each other without spinning: other busy processes cost training their share of the cores, not many times that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STEPS = """
import time
import promptdsi  # sets how threads wait, before torch is loaded
import torch
torch.set_num_threads(2)
vectors, rows = torch.randn(128, 384), torch.randn(2000, 384, requires_grad=True)
def step():
    loss = torch.logsumexp(vectors @ rows.T, 1).mean()
    loss.backward()
step()
started = time.perf_counter()
for _ in range(20):
    step()
print(time.perf_counter() - started)
"""


def seconds() -> float:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    outcome = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, env=environment)
    return float(outcome.stdout)


@pytest.mark.alone
def test_busy_processes_cost_training_little_more_than_their_share() -> None:
    alone = min(seconds() for _ in range(2))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 2)]
    try:
        contended = min(seconds() for _ in range(2))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert contended < 12 * alone, f"{contended:.2f} s beside busy processes, {alone:.2f} s alone"  # spinning threads take 80 times as long
