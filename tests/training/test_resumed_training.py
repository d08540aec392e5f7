"""D0 that some processes were training when they were killed is resumed by any number of processes, to the same loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import resumed_run
import small

PROGRAM = """
import sys
from pathlib import Path
import resumed_run

def hook(event, arguments):
    if event == "pickle.find_class":
        raise RuntimeError(f"unpickled {arguments}")

sys.addaudithook(hook)
resumed_run.main(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("resumed")
    backbone = small.backbone(folder / "backbone", small.stream())
    folders = [str(Path(module.__file__ or "").parent) for module in (small, resumed_run)]
    paths = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    words = [sys.executable, "-c", PROGRAM, str(folder), backbone]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return dict(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("case", "before", "after"), resumed_run.RUNS)
def test_killed_and_resumed_by_another_number_of_processes(outcomes: dict[str, Any], case: str, before: int, after: int) -> None:
    straight, resumed = outcomes[case], outcomes[f"{case} {before} {after}"]
    steps = len(straight["losses"])
    assert 0 < resumed["resumed"] < steps and len(resumed["losses"]) == steps
    assert resumed["losses"] == pytest.approx(straight["losses"], abs=1e-5)
    assert resumed["norms"] == pytest.approx(straight["norms"], abs=1e-4)
    assert len(set(straight["losses"])) > steps // 2  # it did learn
    assert straight["all_rows"] and not (after > 1 and resumed["all_rows"])  # one process has all rows, several have none
