"""Write docs/REPRODUCTION.md and docs/results/README.md from the recorded runs (experiments/reproduction.py, results_page.py).

python -m tools.docs.build_reproduction                  rewrite, from docs/results
python -m tools.docs.build_reproduction --results DIR    from other runs
python -m tools.docs.build_reproduction --check          fail if a page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from promptdsi.bench.report import study_module
from promptdsi.bench.runs import RunStore
from tools.docs.pages import write_or_check

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"reproduction": "docs/REPRODUCTION.md", "results_page": "docs/results/README.md"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/REPRODUCTION.md and docs/results/README.md.")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results", help="the folder that holds runs/")
    parser.add_argument("--check", action="store_true", help="fail if a page is stale")
    arguments = parser.parse_args()
    stale = 0
    for module, page in PAGES.items():
        text = study_module(ROOT / "experiments", module).page(RunStore(arguments.results))
        stale += write_or_check(ROOT / page, text, check=arguments.check)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
