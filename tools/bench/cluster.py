"""Measure an index on a cluster of this machine: several shard processes against one process, with synthetic rows and words.

    python -m tools.bench.cluster [PASSAGES] [SHARDS]      # writes docs/results/bench-cluster.{json,md}; default: 5,000,000 and 4

Rows are random unit vectors of width 384, words are drawn by Zipf's law, and the corpus is stored in parts of a million passages: 11 GB on
disk, built in some minutes with 6 GB of memory. A search begins with a query's vector and text: encoding takes as long in both. Every query
is put to both in turn, so that a busy moment of the machine meets both, and their results are compared bit by bit. Memory and the time to
open are taken in processes of their own, and so is the comparison of one node with two, where a node is a shard with one thread.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
PASSAGES, SHARDS, WIDTH = 5_000_000, 4, 384
VOCABULARY, WORDS, QUERY_WORDS = 50_000, 12, 6
SINGLE, BATCHES, BATCH, K = 30, 4, 64, 11
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
    """A real index of two documents, with a corpus of synthetic passages behind it, written part by part."""
    from promptdsi import Corpus, Document, Index
    from promptdsi.corpus.passages import PIECE
    from promptdsi.engine.postings import Postings, WordStatistics
    from promptdsi.index.blobs import Ids
    from promptdsi.index.entry import Entry
    from promptdsi.index.file_checks import HASH

    first = Corpus([Document("tea", "Tea is brewed with water."), Document("bats", "Bats hear their way.")])
    store = Index.create(place, first, effort="quick", offline=True, device="cpu").store
    frequencies = 1 / np.arange(1, VOCABULARY + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())
    terms = [f"w{number}".encode() for number in range(VOCABULARY)]
    entries: list[Entry] = []
    statistics_blob = ""
    for part, begin in enumerate(range(0, count, PIECE)):
        size, random = min(PIECE, count - begin), np.random.default_rng([0, begin])
        rows = random.standard_normal((size, WIDTH), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        numbers = np.searchsorted(cumulative, random.random(size * WORDS)).clip(max=VOCABULARY - 1)
        present, local = np.unique(numbers, return_inverse=True)
        owners = np.repeat(np.arange(size), WORDS)
        postings = Postings.from_occurrences([terms[number] for number in present], local, owners, lengths=np.full(size, WORDS))
        ids = Ids(2, [f"p{begin + number:08d}" for number in range(size)], "0" * HASH * size)
        statistics_blob = statistics_blob or store.blobs.put_statistics(WordStatistics.of(postings))
        rows_blob, ids_blob = store.blobs.put_rows(rows, since=2, part=part), store.blobs.put_json(ids._asdict())
        words_blob = store.blobs.put_words(postings, since=2, part=part)
        entries.append(Entry("synthetic", 2, size, rows_blob, ids_blob, words=words_blob, part=part))
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


def measure_nodes(place: Path, count: int) -> dict[str, float]:
    """Time of a query and queries per second on this many nodes, each of which has one shard with one thread: the same work on more."""
    from ray_nodes import Nodes

    from promptdsi import Index

    nodes = Nodes(shards=count, count=count)
    try:
        index = Index.open(place, device="cpu", threads=1, on=nodes.url)
        (texts, vectors), times = queries(), list[float]()
        for first, size in [(0, 1), *((number, 1) for number in range(SINGLE // 2)), (SINGLE, BATCH), (SINGLE + BATCH, BATCH)]:
            part = slice(first, first + size)
            started = time.perf_counter()
            index.opened.passages.top_k(vectors[part], texts[part], K)
            times.append(time.perf_counter() - started)
        return {"p50 ms": 1e3 * statistics.median(times[1:-2]), "per s": BATCH / min(times[-2:])}
    finally:
        nodes.shut_down()


def compare_nodes(place: Path) -> dict[str, float]:
    """One node against two, each in a process of its own."""
    figures = []
    for count in (1, 2):
        words = [sys.executable, "-m", "tools.bench.cluster", "--nodes", str(count), str(place)]
        figures.append(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]))
    one_node, two = figures
    compared = {f"one query, p50 ms, {number} nodes": round(figure["p50 ms"], 1) for number, figure in enumerate(figures, 1)}
    compared |= {f"{BATCH} queries, per s, {number} nodes": round(figure["per s"], 1) for number, figure in enumerate(figures, 1)}
    compared |= {"speed-up by the second node, one query": round(one_node["p50 ms"] / two["p50 ms"], 2)}
    return compared | {f"speed-up by the second node, {BATCH} queries": round(two["per s"] / one_node["per s"], 2)}


def main() -> None:
    if sys.argv[1:2] == ["--nodes"]:
        print(json.dumps(measure_nodes(Path(sys.argv[3]), int(sys.argv[2]))))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PASSAGES
    shards = int(sys.argv[2]) if len(sys.argv) > 2 else SHARDS
    url = f"ray://local?shards={shards}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "index"
        started = time.perf_counter()
        build(place, count)
        built = time.perf_counter() - started
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        opened = {}
        for name, on in (("one process", ""), ("shards", url)):
            answer = subprocess.run([sys.executable, "-c", OPENING, str(place), on], capture_output=True, text=True, check=True).stdout
            opened[name] = json.loads(answer.splitlines()[-1])
        measured = measure(place, url)
        compared = compare_nodes(place)
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
        **{"GB on disk": gigabytes, "seconds to build": round(built), "one node against two, each one thread of this machine": compared},
        load=load(),
    )


def load() -> str:
    """How busy the machine was: shards compete with whatever else runs."""
    return f"{Path('/proc/loadavg').read_text().split()[1]} processes on average wanted to run in the last five minutes"


if __name__ == "__main__":
    main()
