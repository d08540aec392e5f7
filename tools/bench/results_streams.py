"""The streams the experiments run on, as in the paper's Table 1, with the checksum of each.

python -m tools.bench.results_streams       builds demo and squadx (download once, 358 MB) and writes docs/results/streams.*
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from promptdsi.corpus.sources import Request, build_stream
from promptdsi.corpus.streams import totals
from promptdsi.progress import shown
from tools import evidence

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": ("demo", {}),
    "squadx": ("squadx", {}),
    "squadx --share 0.06": ("squadx", {"share": 0.06}),
    "squadx --limit 3000 --new 5 --share 0.06": ("squadx", {"limit": 3000, "new": 5, "share": 0.06}),
    "squadx --by domain": ("squadx", {"by": "domain"}),
}


def main() -> None:
    rows = []
    for name, (source, options) in STREAMS.items():
        stream = build_stream(source, Request(quiet=False, progress=shown), **options)
        with tempfile.TemporaryDirectory() as folder:
            manifest = stream.write(Path(folder) / "stream")
        digest = hashlib.sha256(json.dumps(manifest["sha256"], sort_keys=True).encode()).hexdigest()[:16]
        table = stream.table()
        rows += [{"stream": name, **row, "checksum": ""} for row in table]
        rows.append({"stream": name, **totals(table), "checksum": digest})
    evidence.write("streams", "Streams", "make results", rows, seed=0)


if __name__ == "__main__":
    main()
