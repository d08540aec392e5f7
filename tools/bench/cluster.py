"""Measure an index on a cluster of this machine: several shard processes against one process, with synthetic rows and words.

    python -m tools.bench.cluster [PASSAGES] [SHARDS]      # writes docs/results/bench-cluster.{json,md}; default: 1,000,000 and 4

Rows are random unit vectors, words are drawn by Zipf's law, corpora have at most 250,000 passages. A search begins with a query's vector
and text: encoding takes as long in both. Every query is put to both in turn, so that a busy moment of the machine meets both, and their
results are compared bit by bit. Memory and the time to open are taken in processes of their own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tools import evidence

PASSAGES, SHARDS, CORPUS, WIDTH = 1_000_000, 4, 250_000, 384
VOCABULARY, WORDS, QUERY_WORDS = 50_000, 12, 6
SINGLE, BATCHES, BATCH, K = 40, 5, 64, 11
OPENING = """
import json, sys, time
from pathlib import Path
from promptdsi import Index
started = time.perf_counter()
index = Index.open(sys.argv[1], device="cpu", on=sys.argv[2] or None)
index.locate("")
ready = time.perf_counter() - started
index.search("w1 w20 w300", k=10)
def memory(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return {name: int(status.split(name + ":")[1].split()[0]) / 1024 for name in ("RssAnon", "RssFile")}
pids = ["self"]
if sys.argv[2]:
    import ray
    pids += ray.get([actor.process_id.remote() for actor in index.opened.passages.shards.actors])
print(json.dumps([ready, [memory(pid) for pid in pids]]))
"""


def build(place: Path, count: int) -> None:
    """A real index of two documents, with corpora of synthetic passages behind it."""
    from promptdsi import Corpus, Document, Index
    from promptdsi.engine.postings import Postings, WordStatistics
    from promptdsi.index.blobs import Ids
    from promptdsi.index.file_checks import HASH
    from promptdsi.index.manifest import Entry

    first = Corpus([Document("tea", "Tea is brewed with water."), Document("bats", "Bats hear their way.")])
    store = Index.create(place, first, effort="quick", offline=True, device="cpu").store
    frequencies = 1 / np.arange(1, VOCABULARY + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())
    terms = [f"w{number}".encode() for number in range(VOCABULARY)]
    entries: list[Entry] = []
    statistics_blob = ""
    for begin in range(0, count, CORPUS):
        size, random = min(CORPUS, count - begin), np.random.default_rng([0, begin])
        rows = random.standard_normal((size, WIDTH), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        numbers = np.searchsorted(cumulative, random.random(size * WORDS)).clip(max=VOCABULARY - 1)
        present, local = np.unique(numbers, return_inverse=True)
        owners = np.repeat(np.arange(size), WORDS)
        postings = Postings.from_occurrences([terms[number] for number in present], local, owners, lengths=np.full(size, WORDS))
        ids = Ids(2, [f"p{begin + number:08d}" for number in range(size)], "0" * HASH * size)
        statistics_blob = statistics_blob or store.blobs.put_statistics(WordStatistics.of(postings))
        rows_blob, ids_blob = store.blobs.put_rows(rows, since=2), store.blobs.put_json(ids._asdict())
        entries.append(Entry(f"synthetic-{begin}", 2, size, rows_blob, ids_blob, words=store.blobs.put_words(postings, since=2)))
    manifest = store.manifest()
    corpora = (*manifest.corpora, *entries)
    store.commit(replace(manifest, number=2, parent=1, kind="add", corpora=corpora, statistics=statistics_blob))


def queries() -> tuple[list[str], Any]:
    random = np.random.default_rng(1)
    count = SINGLE + BATCHES * BATCH
    words = (VOCABULARY ** random.random((count, QUERY_WORDS))).astype(int)
    vectors = random.standard_normal((count, WIDTH)).astype(np.float32)
    return [" ".join(f"w{number}" for number in each) for each in words], vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measure(place: Path, url: str) -> dict[str, Any]:
    """Times of single queries and of batches in both, and how many results are equal."""
    from promptdsi import Index

    stores = {name: Index.open(place, device="cpu", check=False, on=on) for name, on in (("one process", None), ("shards", url))}
    texts, vectors = queries()
    sizes = [1] * SINGLE + [BATCH] * BATCHES
    firsts = np.cumsum([0, *sizes])
    times: dict[str, list[float]] = {name: [] for name in stores}
    equal = 0
    for store in stores.values():
        store.opened.passages.top_k(vectors[:1], texts[:1], K)
    for first, size in zip(firsts.tolist(), sizes, strict=False):
        part, results = slice(first, first + size), []
        for name, store in stores.items():
            started = time.perf_counter()
            results.append(store.opened.passages.top_k(vectors[part], texts[part], K))
            times[name].append(time.perf_counter() - started)
        equal += sum(one_process == sharded for one_process, sharded in zip(*results, strict=True))
    return {"times": times, "equal": equal, "queries": len(texts)}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PASSAGES
    shards = int(sys.argv[2]) if len(sys.argv) > 2 else SHARDS
    url = f"ray://local?shards={shards}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "index"
        build(place, count)
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        opened = {}
        for name, on in (("one process", ""), ("shards", url)):
            answer = subprocess.run([sys.executable, "-c", OPENING, str(place), on], capture_output=True, text=True, check=True).stdout
            opened[name] = json.loads(answer.splitlines()[-1])
        measured = measure(place, url)
    rows = []
    for name, label in (("one process", "one process"), ("shards", f"{shards} shards")):
        ready, memory = opened[name]
        each, times = memory[1:] or memory, measured["times"][name]
        rows.append(
            {
                "passages": count,
                "system": label,
                "one query, p50 ms": round(1e3 * statistics.median(times[:SINGLE]), 1),
                "one query, p90 ms": round(1e3 * float(np.quantile(times[:SINGLE], 0.9)), 1),
                f"{BATCH} queries, per s": round(BATCH / statistics.median(times[SINGLE:]), 1),
                "memory of a process, MiB": round(max(part["RssAnon"] for part in each)),
                "mapped by a process, MiB": round(max(part["RssFile"] for part in each)),
                "coordinator, MiB": round(memory[0]["RssAnon"]),
                "ready after, s": round(ready, 1),
            }
        )
    equal = f"{measured['equal']} of {measured['queries']} queries: docids and scores bit by bit"
    gigabytes = round(size / 1e9, 2)
    evidence.write(
        "bench-cluster",
        "An index on a cluster",
        "python -m tools.bench.cluster",
        rows,
        equal=equal,
        **{"GB on disk": gigabytes},
        load=load(),
    )


def load() -> str:
    """How busy the machine was: shards compete with whatever else runs."""
    return f"{Path('/proc/loadavg').read_text().split()[1]} processes on average wanted to run in the last five minutes"


if __name__ == "__main__":
    main()
