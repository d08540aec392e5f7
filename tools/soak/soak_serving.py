"""The load test of `make test` for a minute: eight clients ask while generations are committed.

python -m tools.soak.soak_serving [SECONDS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import evidence

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        environment = os.environ | {"PROMPTDSI_LOAD_SECONDS": seconds, "PROMPTDSI_LOAD_FIGURES": str(figures)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/serving/test_serving_load.py"]
        outcome = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[2]
        )
        if outcome.returncode:
            print(outcome.stdout[-4000:], file=sys.stderr)
            return 1
        rows = [json.loads(figures.read_text("utf-8"))]
    evidence.write("soak-serving", "Eight clients while generations are committed", "make soak", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
