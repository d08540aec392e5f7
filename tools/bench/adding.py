"""Measure adding new documents end to end: rows as `best` learns them, IncDSI's solver, and learning everything again (Joint).

    python -m tools.bench.adding      # writes docs/results/bench-adding.{json,md}

All three begin from one D0, the demo corpus, and take the same new documents, 2 % of it. Adding takes turns over rounds; learning
everything again and `Index.add`, which also measures, writes and commits, are measured once.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tools import evidence

ROUNDS = 5
SHARE = 0.02
LONG = ("Joint, three epochs over everything", "Index.add, with measuring and writing")


def main() -> None:
    from promptdsi import Index
    from promptdsi.corpus.sources import Request, build_stream
    from promptdsi.methods.dsi_method import BEST_D0
    from promptdsi.methods.incdsi import IncDSI
    from promptdsi.methods.joint import Joint
    from promptdsi.methods.options import merge_params
    from promptdsi.methods.promptdsi import PRESETS
    from promptdsi.methods.rows_only import RowsOnly

    old, new = build_stream("demo", Request(), new=1, share=SHARE).corpora
    options: dict[str, Any] = {"device": "cpu", "offline": True}
    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(Path(folder) / "index", old, params={"fit.epochs": 1}, **options)
        # The method an index holds has learned D0 already; the others begin from it.
        d0 = index.opened.method
        methods = {
            "rows only, as `best`": RowsOnly.from_params(merge_params(PRESETS["rows"], {"fit": {"epochs": 1}}, options)).begin_from(
                d0, old
            ),
            "IncDSI's solver": IncDSI.from_params(BEST_D0 | options).begin_from(d0, old),
        }
        taken: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(ROUNDS):
            for name, method in methods.items():
                fresh = copy.deepcopy(method)
                started = time.perf_counter()
                fresh.add(new)
                taken[name].append(time.perf_counter() - started)
        joint = Joint.from_params(merge_params(BEST_D0, {"add": {"epochs": 3, "row_decay": 0.0}}, options)).begin_from(d0, old)
        started = time.perf_counter()
        joint.add(new)
        taken[LONG[0]] = [time.perf_counter() - started]
        started = time.perf_counter()
        index.add(new)
        taken[LONG[1]] = [time.perf_counter() - started]
    ours = taken["rows only, as `best`"]
    table = [
        {
            "what": name,
            "seconds": round(statistics.median(seconds), 2),
            "from … to": f"{min(seconds):.2f} … {max(seconds):.2f}",
            "× rows only": round(statistics.median(seconds) / statistics.median(ours), 2),
        }
        for name, seconds in taken.items()
    ]
    evidence.write("bench-adding", "Adding 2 % new documents", "make bench", table, old=len(old), new=len(new), rounds=ROUNDS)


if __name__ == "__main__":
    main()
