"""The wheel: it builds, installs into a clean environment, and works there from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def test_the_wheel_installs_and_runs_in_a_clean_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("promptdsi-*.whl")
    venv.create(tmp_path / "clean")
    python = tmp_path / "clean/bin/python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
        ).stdout.strip()
    )
    # Our dependencies are large: the clean environment borrows them from this one, and pip must find each of them good enough.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--ignore-installed", "--no-deps", str(wheel)], check=True)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    assert "promptdsi" not in checked.stdout, checked.stdout
    clean: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path, "env": os.environ | {"PYTHONPATH": ""}}
    imported = subprocess.run([python, "-c", "import promptdsi; print(promptdsi.__file__)"], **clean)
    assert Path(imported.stdout.strip()).is_relative_to(tmp_path / "clean")
    outcome = subprocess.run([tmp_path / "clean/bin/promptdsi", "data", "demo", "-o", "d"], **clean)
    assert outcome.returncode == 0, outcome.stderr
    assert (tmp_path / "d/d3/corpus.jsonl").is_file()
