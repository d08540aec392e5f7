"""Measure `create`: minutes at each level of effort, until the first answer, and beside another busy process.

    python -m tools.bench.creating [--documents 9725] [--full]     # writes docs/results/bench-creating.{json,md}
    python -m tools.bench.creating --efforts                       # quality and time of each effort: docs/results/bench-efforts.{json,md}

Documents are paragraphs of squadx with their train queries. Each create is a process of its own, as from the command line; the first
answer is that of a search with the finished index, which is opened anew. The busy process counts, and so keeps one core.
The ratio of busy to quiet is measured on fewer documents, twice in turn. `full` is measured only if asked for: it takes many times longer.
Quality is measured on the dev queries of the same documents, with train queries to learn from and without any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import Corpus, merge_corpora
from promptdsi.corpus.sources import Request, build_stream, squadx
from tools import evidence

FEWER, ROUNDS = 1000, 2
QUERY = "how many people live in the city"
PROMPTDSI = [sys.executable, "-m", "promptdsi"]


def create(corpus: Path, effort: str, *, busy: bool = False, evaluated: Path | None = None) -> dict[str, float]:
    """Seconds until the index is written, and until it has answered; Hits@1 and Hits@10 on the dev queries of the corpus `evaluated`."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            command = [*PROMPTDSI, "create", f"{folder}/index", str(corpus), "--effort", effort, "--offline", "--device", "cpu", "--quiet"]
            subprocess.run(command, check=True)
            created = time.monotonic() - started
            searched = subprocess.run([*PROMPTDSI, "search", f"{folder}/index", QUERY, "--json"], check=True, capture_output=True)
            assert json.loads(searched.stdout)["hits"]
            seconds = {"created": created, "answered": time.monotonic() - started}
            if evaluated is None:
                return seconds
            command = [*PROMPTDSI, "eval", f"{folder}/index", str(evaluated), "--split", "dev", "--json", "--quiet"]
            metrics = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["metrics"]
            return seconds | {name: 100 * metrics[name]["value"] for name in ("Hits@1", "Hits@10")}
    finally:
        if other:
            other.kill()
            other.wait()


def measure(place: Path, documents: int, *, full: bool) -> None:
    everything = squadx.build(Request()).corpus
    few = merge_corpora(build_stream("squadx", Request(), limit=FEWER).corpora, "few")
    if documents < len(everything):
        everything = merge_corpora(build_stream("squadx", Request(), limit=documents).corpora, "squadx")
    everything.write(place / "all")
    few.write(place / "few")
    rows: list[dict[str, Any]] = []
    for effort in ("quick", "normal", *(["full"] if full else [])):
        rows.append(row(everything, effort, create(place / "all", effort)))
    turns = [(create(place / "few", "normal"), create(place / "few", "normal", busy=True)) for _ in range(ROUNDS)]
    ratios = [busy["created"] / quiet["created"] for quiet, busy in turns]
    for quiet, busy in turns:
        rows += [row(few, "normal", quiet), row(few, "normal, beside a busy process", busy)]
    ratio = f"{sum(ratios) / len(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
    facts = {"times as long beside a busy process": ratio}
    evidence.write("bench-creating", "Creating an index", "python -m tools.bench.creating", rows, **facts)


def measure_efforts(place: Path) -> None:
    """Quality and time at each level of effort, with annotated queries and with none."""
    few = merge_corpora(build_stream("squadx", Request(), limit=FEWER).corpora, "few")
    few.write(place / "few")
    Corpus(few.documents, few.queries, {"dev": few.qrels["dev"]}).write(place / "bare")  # what people have: documents
    rows = []
    for name, learned_from in (("few", "annotated queries and spans"), ("bare", "spans")):
        for effort in ("quick", "normal", "full"):
            measured = create(place / name, effort, evaluated=place / "few")
            rows.append(
                row(few, effort, measured) | {"learned from": learned_from, "Hits@1": measured["Hits@1"], "Hits@10": measured["Hits@10"]}
            )
    title = "Quality and time at each level of effort"
    evidence.write("bench-efforts", title, "python -m tools.bench.creating --efforts", rows, queries=len(few.pairs("dev")))


def row(corpus: Corpus, effort: str, seconds: dict[str, float]) -> dict[str, Any]:
    return {"documents": len(corpus), "effort": effort, "created in s": seconds["created"], "answered after s": seconds["answered"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=9725)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--efforts", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.efforts:
            measure_efforts(Path(folder))
        else:
            measure(Path(folder), options.documents, full=options.full)


if __name__ == "__main__":
    main()
