"""Write docs/REPRODUCTION.md from the recorded runs (experiments/reproduction.py).

python -m tools.docs.build_reproduction                  rewrite, from docs/results
python -m tools.docs.build_reproduction --results DIR    from other runs
python -m tools.docs.build_reproduction --check          fail if the page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from promptdsi.bench.report import study_module
from promptdsi.bench.runs import RunStore
from tools.docs.pages import write_or_check

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/REPRODUCTION.md.")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results", help="the folder that holds runs/")
    parser.add_argument("--check", action="store_true", help="fail if the page is stale")
    arguments = parser.parse_args()
    text = study_module(ROOT / "experiments", "reproduction").page(RunStore(arguments.results))
    return write_or_check(ROOT / "docs" / "REPRODUCTION.md", text, check=arguments.check)


if __name__ == "__main__":
    sys.exit(main())
