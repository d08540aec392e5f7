"""Measure reading: a million short documents, against bare JSON parsing of the same file in the same run.

    python -m tools.bench.reading [DOCUMENTS]

Each measurement runs in its own process, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import evidence

ROUNDS = 5


def measure(what: str, path: Path) -> dict[str, float]:
    """Run one reader once; return its seconds and its peak memory over an idle interpreter's."""
    from promptdsi.corpus import Corpus, ReadNotes, reading

    idle = evidence.peak_mib()
    started = time.perf_counter()
    if what == "json.loads alone":
        with path.open("rb") as file:
            for line in file:
                json.loads(line)
    elif what == "documents, streamed":
        for _ in reading.documents(path, ReadNotes()):
            pass
    else:
        Corpus.read(path)
    return {"seconds": time.perf_counter() - started, "mib": evidence.peak_mib() - idle}


def main() -> None:
    documents = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        with path.open("w") as file:
            for number in range(documents):
                text = f"Document {number} speaks of item {number % 977} and place {number % 89} in a few plain words, some twenty of them."
                file.write(json.dumps({"_id": f"doc-{number}", "title": f"Title {number}", "text": text}) + "\n")
        kinds = ("json.loads alone", "documents, streamed", "Corpus.read, held in memory")
        measurements: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):  # in turn, so that a noisy minute falls on all of them
            for kind in kinds:
                output = subprocess.run(
                    [sys.executable, "-m", "tools.bench.reading", "--one", kind, str(path)], capture_output=True, text=True, check=True
                ).stdout
                measurements[kind].append(json.loads(output))
        size = path.stat().st_size
    base = statistics.median(run["seconds"] for run in measurements[kinds[0]])
    rows = []
    for kind, runs in measurements.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        spread = max(run["seconds"] for run in runs) - min(run["seconds"] for run in runs)
        rows.append(
            {
                "reader": kind,
                "documents per second": round(documents / seconds),
                "time / json.loads": seconds / base,
                "spread of seconds": spread,
                "extra memory, MiB": round(max(run["mib"] for run in runs)),
            }
        )
    evidence.write(
        "bench-reading", "Reading documents", "make bench", rows, documents=documents, megabytes=round(size / 1e6), rounds=ROUNDS
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
    else:
        main()
