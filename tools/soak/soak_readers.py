"""Long fuzzing of the readers: the property tests of `make test` with many more examples.

python -m tools.soak.soak_readers [EXAMPLES]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tools import evidence

TESTS = ("tests/corpus/test_roundtrip.py", "tests/corpus/test_fuzz.py")

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rows = []
    for test in TESTS:
        started = time.perf_counter()
        environment = os.environ | {"PROMPTDSI_EXAMPLES": str(examples)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
        outcome = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[2]
        )
        passed = re.search(r"(\d+) passed", outcome.stdout)
        if outcome.returncode:
            print(outcome.stdout[-4000:], file=sys.stderr)
        row = {"tests": test, "passed": int(passed[1]) if passed else 0, "failed": int(outcome.returncode != 0)}
        rows.append(row | {"examples each": examples, "seconds": round(time.perf_counter() - started)})
    evidence.write("soak-readers", "Fuzzing the readers", "make soak", rows)
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
