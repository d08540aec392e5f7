"""Measure a query from text to documents against what people would use instead, at 10,000, 100,000 and 1,000,000 rows.

    python -m tools.bench.queries [ROWS…]      # writes docs/results/bench-queries.{json,md}

Rows and texts are synthetic, the encoder is the embedded MiniLM. Every system lives in a process of its own, with the threads it
takes by default (sentence-transformers runs on torch), and they are asked in turn, so that a busy moment of the machine meets all.
Figures are medians over rounds, with the lowest and highest; ratios are taken within a round; p99 is of all rounds together.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tools import evidence
from tools.bench.line_process import LineProcess

SIZES = (10_000, 100_000, 1_000_000)
ROUNDS, QUERIES, BATCH, WIDTH = 9, 24, 64, 384
WORDS = 24  # of a synthetic text
OURS, INT8, THEIRS, BM25 = "promptdsi", "promptdsi int8", "sentence-transformers + FAISS flat", "bm25s"
ENCODER, ENCODER_INT8 = "encoder alone", "encoder alone, int8"
SCAN = "search in rows alone"
SYSTEMS = (ENCODER, SCAN, OURS, ENCODER_INT8, INT8, THEIRS, BM25)
FIRST = "a first query, so that nobody waits for what is set up once"
Ranker = Callable[[list[str]], Any]


# What is asked ------------------------------------------------------------------------------------------------------------


def queries(count: int) -> list[str]:
    """Real questions of the demo corpus."""
    from promptdsi.corpus.sources import Request, build_stream

    corpora = build_stream("demo", Request()).corpora
    questions = [pair.query.text for corpus in corpora for pair in corpus.pairs("test")]
    return (questions * (1 + count // len(questions)))[:count]


def build(place: Path, rows: int) -> Path:
    """An index with a real encoder and synthetic rows, no words; it stores no texts, so that only the search is measured."""
    from promptdsi import Corpus, Document, Index
    from promptdsi.index.blobs import Ids
    from promptdsi.index.entry import Entry

    first = Corpus([Document("tea", "Tea is brewed with water."), Document("bats", "Bats hear their way.")])
    store = Index.create(place, first, effort="quick", words=False, store="none", offline=True, device="cpu").store
    vectors = synthetic(rows)
    ids = Ids(2, [f"synthetic-{number}" for number in range(rows)], "0" * 64 * rows)
    entry = Entry(
        "synthetic",
        since=2,
        count=rows,
        rows=store.blobs.put_rows(vectors, since=2),
        ids=store.blobs.put_json(ids._asdict()),
        documents=None,
    )
    manifest = store.manifest()
    store.commit(replace(manifest, number=2, parent=1, kind="add", corpora=(*manifest.corpora, entry)))
    return place


def synthetic(rows: int) -> Any:
    """Unit vectors (rows, 384)."""
    vectors = np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32)
    for first in range(0, rows, 65_536):
        part = vectors[first : first + 65_536]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def texts(rows: int) -> list[str]:
    """Synthetic texts of the questions' own words, common ones more often: every query finds many of them."""
    words = sorted({word for query in queries(400) for word in query.lower().split()})
    random = np.random.default_rng(0)
    chosen = np.minimum(random.zipf(1.3, (rows, WORDS)) - 1, len(words) - 1)
    return [" ".join(words[number] for number in row) for row in chosen]


# Who is asked, each in a process of its own -------------------------------------------------------------------------------


def contestant(name: str, place: str) -> Ranker:
    if name in (OURS, INT8, ENCODER, ENCODER_INT8):
        from promptdsi import Index

        index = Index.open(place, check=False, engine="int8" if name in (INT8, ENCODER_INT8) else "onnx")
        return index.opened.encoder.encode if name in (ENCODER, ENCODER_INT8) else lambda batch: index.search(batch, k=10)
    if name == SCAN:
        from promptdsi import Index

        snapshot = Index.open(place, check=False).opened
        every = [FIRST, *queries(max(QUERIES * ROUNDS, BATCH))]
        vectors = dict(zip(every, snapshot.encoder.encode(every).vectors, strict=True))
        return lambda batch: snapshot.table.top(np.stack([vectors[query] for query in batch]), 10)
    if name == THEIRS:
        import faiss
        from sentence_transformers import SentenceTransformer

        from promptdsi.model.backbone import backbone_folder

        model, flat = SentenceTransformer(str(backbone_folder("minilm"))), faiss.read_index(str(Path(place).parent / "rows.faiss"))
        return lambda batch: flat.search(model.encode(batch, normalize_embeddings=True, show_progress_bar=False), 10)
    import bm25s

    index = bm25s.BM25.load(Path(place).parent / "bm25")
    return lambda batch: index.retrieve(bm25s.tokenize(batch, show_progress=False), k=10, show_progress=False)


def prepare(place: str, rows: int) -> None:
    """What the others search in, written as they write it; in a process of its own, so that none of it stays in memory."""
    import bm25s
    import faiss

    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(synthetic(rows))
    faiss.write_index(flat, str(Path(place).parent / "rows.faiss"))
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts(rows), show_progress=False), show_progress=False)
    index.save(Path(place).parent / "bm25")


def answer(make_ranker: Callable[[], Ranker]) -> None:
    """Answer what comes over standard input: a list of lists of queries, each timed."""
    started = time.perf_counter()
    rank_queries = make_ranker()
    rank_queries([FIRST])
    print(json.dumps({"ready": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        taken = []
        for batch in json.loads(line):
            began = time.perf_counter()
            rank_queries(batch)
            taken.append(time.perf_counter() - began)
        status = Path("/proc/self/status").read_text()
        memory = {key: int(status.split(f"{key}:")[1].split()[0]) / 1024 for key in ("RssAnon", "RssFile")}
        print(json.dumps({"seconds": taken, "memory": memory}), flush=True)


class Contestant(LineProcess):
    """A system in its own process, which a module of this folder runs."""

    def __init__(self, name: str, place: Path, module: str = "tools.bench.queries") -> None:
        super().__init__([sys.executable, "-m", module, "--answer", name, str(place)])
        self.ready = self.first["ready"]
        self.memory: dict[str, float] = {}

    def rank_queries(self, batches: list[list[str]]) -> list[float]:
        timing = self.request(batches)
        self.memory = timing["memory"]
        return list(timing["seconds"])


def bandwidth(threads: int, size: int = 1 << 30) -> float:
    """Bytes read from memory in a second, by as many threads as there are cores."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones(size // 8, np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        best = 0.0
        for _ in range(4):
            began = time.perf_counter()
            list(pool.map(np.max, parts))  # leaves Python alone, and is quicker than memory
            best = max(best, size / (time.perf_counter() - began))
    return best


# Measuring ----------------------------------------------------------------------------------------------------------------


def measure(place: Path, rows: int) -> dict[str, Any]:
    """All systems at one size: single queries and a batch, in rounds."""
    questions = queries(QUERIES * ROUNDS)
    batch = queries(BATCH)
    threads = len(os.sched_getaffinity(0))
    rounds: list[dict[str, Any]] = []
    systems = {name: Contestant(name, place) for name in SYSTEMS}
    for number in range(ROUNDS):
        singles = [[query] for query in questions[number * QUERIES : (number + 1) * QUERIES]]
        timings: dict[str, Any] = {"bandwidth": max(bandwidth(threads), bandwidth(1))}
        for name, system in systems.items():
            taken = system.rank_queries(singles)
            timings[name] = {"p50": statistics.median(taken), "all": taken}
            timings[name]["batch"] = min(system.rank_queries([batch, batch]))
        rounds.append(timings)
    memory = {name: system.memory for name, system in systems.items()}
    ready = {name: system.ready for name, system in systems.items()}
    for system in systems.values():
        system.close()
    return {"rows": rows, "rounds": rounds, "memory": memory, "ready": ready, "exact": is_exact(place, rows, batch)}


def is_exact(place: Path, rows: int, batch: list[str]) -> bool:
    """Whether single searches and a batch find what scoring every row in float64 finds."""
    from promptdsi import Index

    snapshot = Index.open(place, check=False).opened
    vectors = snapshot.encoder.encode(batch[:16]).vectors
    every = np.concatenate([block.rows for block in snapshot.table.blocks])
    batched = snapshot.table.top(vectors, 10)
    for number, vector in enumerate(vectors):
        scores = np.concatenate([every[first : first + 65_536].astype(np.float64) @ vector for first in range(0, len(every), 65_536)])
        best = np.sort(scores.astype(np.float32))[::-1][:10]
        alone = snapshot.table.top(vector[None], 10)
        if not (np.array_equal(alone.scores[0], best) and np.array_equal(batched.scores[number], best)):
            return False
        if not np.array_equal(scores.astype(np.float32)[alone.rows[0]], best):
            return False
    return True


def cost_of_int8() -> dict[str, Any]:
    """What int8 loses on real documents and questions: the demo corpus, with the embedded encoder as it is."""
    from promptdsi import Index
    from promptdsi.corpus.sources import Request, build_stream

    corpus = build_stream("demo", Request(), new=0).corpora[0]
    pairs = corpus.pairs("test")
    questions, hits, vectors = [pair.query.text for pair in pairs], {}, []
    with tempfile.TemporaryDirectory() as folder:
        Index.create(Path(folder) / "index", corpus, effort="quick", words=False, offline=True, device="cpu")
        for engine in ("onnx", "int8"):
            index = Index.open(Path(folder) / "index", engine=engine)
            vectors.append(index.opened.encoder.encode(questions).vectors)
            ranks = [
                next((hit.rank for hit in ranking if hit.docid == pair.docid), 11)
                for ranking, pair in zip(index.search(questions, k=10), pairs, strict=True)
            ]
            hits[engine] = {k: 100 * statistics.mean(rank <= k for rank in ranks) for k in (1, 10)}
    exact, near = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in vectors)
    cosines = (exact * near).sum(1)
    losses = {f"Hits@{k}": f"{hits['int8'][k]:.1f} instead of {hits['onnx'][k]:.1f}" for k in (1, 10)}
    return losses | {"queries": len(questions), "cosine": f"{cosines.mean():.4f} on average, {cosines.min():.4f} at worst"}


def middle(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """Ratios within rounds, and what the limits are."""
    rounds, rows = result["rounds"], result["rows"]
    stored = rows * (WIDTH + 8)  # a byte for each number, and each row's shift and scale

    def over(function: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        return middle([function(timings) for timings in rounds])

    return {
        "one query, × encoder alone": over(lambda timings: timings[OURS]["p50"] / timings[ENCODER]["p50"]),
        "one query, × sentence-transformers + FAISS": over(lambda timings: timings[OURS]["p50"] / timings[THEIRS]["p50"]),
        "one query, × bm25s": over(lambda timings: timings[OURS]["p50"] / timings[BM25]["p50"]),
        "one query int8, × sentence-transformers + FAISS": over(lambda timings: timings[INT8]["p50"] / timings[THEIRS]["p50"]),
        "scan, × streaming the codes once": over(lambda timings: timings[SCAN]["p50"] / (stored / timings["bandwidth"])),
        "one query beyond its encoder, × streaming the codes once": over(
            lambda timings: (timings[OURS]["p50"] - timings[ENCODER]["p50"]) / (stored / timings["bandwidth"])
        ),
        "64 queries, throughput ÷ sentence-transformers + FAISS": over(lambda timings: timings[THEIRS]["batch"] / timings[OURS]["batch"]),
        "64 queries int8, throughput ÷ sentence-transformers + FAISS": over(
            lambda timings: timings[THEIRS]["batch"] / timings[INT8]["batch"]
        ),
        "64 queries, throughput ÷ bm25s": over(lambda timings: timings[BM25]["batch"] / timings[OURS]["batch"]),
        "GB/s of memory": over(lambda timings: timings["bandwidth"] / 1e9),
    }


def main() -> None:
    if sys.argv[1:2] == ["--answer"]:
        return answer(lambda: contestant(sys.argv[2], sys.argv[3]))
    if sys.argv[1:2] == ["--prepare"]:
        return prepare(sys.argv[2], int(sys.argv[3]))
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    results = []
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            place = build(Path(folder) / "index", rows)
            subprocess.run([sys.executable, "-m", "tools.bench.queries", "--prepare", str(place), str(rows)], check=True)
            results.append(measure(place, rows))
    table = []
    for result in results:
        for name in SYSTEMS:
            rounds = [entry[name] for entry in result["rounds"]]
            p50, batch = (middle([1e3 * entry[part] for entry in rounds]) for part in ("p50", "batch"))
            slowest = float(np.quantile([1e3 * taken for entry in rounds for taken in entry["all"]], 0.99))
            table.append(
                {
                    "rows": result["rows"],
                    "system": name,
                    "one query, p50 ms": round(p50["median"], 2),
                    "from … to": f"{p50['low']:.2f} … {p50['high']:.2f}",
                    "p99 ms": round(slowest, 2),
                    "64 queries, per s": round(1e3 * BATCH / batch["median"]),
                    "memory of its own, MiB": round(result["memory"][name]["RssAnon"]),
                    "mapped, MiB": round(result["memory"][name]["RssFile"]),
                    "ready after, s": round(result["ready"][name], 2),
                }
            )
    ratios = {f"{result['rows']:,} rows": figures(result) for result in results}
    exact = {f"{result['rows']:,} rows": result["exact"] for result in results}
    facts: dict[str, Any] = {"rounds": ROUNDS, "ratios": ratios, "exact": exact, "int8 on the demo corpus": cost_of_int8()}
    evidence.write("bench-queries", "One query, and sixty-four", "make bench", table, **facts)


if __name__ == "__main__":
    main()
