"""Measure words: how fast their weights are built, and what they add to the time of a search, at 10,000 and 100,000 passages.

    python -m tools.bench.words [--million]      # writes docs/results/bench-words.{json,md}; --million: also at 1,000,000

Passages are synthetic: about a hundred words each, drawn by Zipf's law (Mandelbrot's form, as measured for English), the most frequent of
which are the stop words. A query is eight words of a passage, and its vector has a cosine of .6 with that passage's row; rows are
random unit vectors. Every system lives in a process of its own and each query is put to all in turn, so that a busy moment of the
machine meets all. A search here begins with a query's vector and text: encoding takes as long with words as without. bm25s has the
same passages, split into the same words, and runs as it comes: with its numpy backend, which is slower than its numba backend
(docs/LOG.md). Figures are medians over rounds, with the lowest and highest; ratios are taken within a round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tools import evidence
from tools.bench.queries import FIRST, WIDTH, Contestant, Ranker, answer, middle, synthetic

SIZES, MILLION = (10_000, 100_000), 1_000_000
ROUNDS, QUERIES, BATCH, BUILDS = 9, 24, 64, 3
LENGTH, QUERY_LENGTH, VOCABULARY, CHUNK = 100, 8, 500_000, 10_000
OFFSET = 2.7  # of Mandelbrot's form of Zipf's law: the frequency of the word of rank r goes with 1 / (r + 2.7)
COSINE = 0.6  # of a query with the row of its passage
CHECKED = 16  # queries whose results are compared with scoring every passage in float64
HYBRID, ROWS, BM25 = "rows and words", "rows alone", "bm25s"
SYSTEMS = (ROWS, HYBRID, BM25)
MODULE = "tools.bench.words"


# What is searched ---------------------------------------------------------------------------------------------------------


def vocabulary() -> list[str]:
    """Words by rank: the stop words, then synthetic ones."""
    from promptdsi.corpus.generators.stopwords import STOPWORDS

    common = sorted(word for word in STOPWORDS if word.isascii() and word.isalnum())
    return common + [f"w{number}" for number in range(VOCABULARY - len(common))]


def passages(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """The ranks, from 0, of the words of each passage; the same for the same number of passages."""
    frequencies = 1 / (np.arange(1, VOCABULARY + 1) + OFFSET)
    cumulative = np.cumsum(frequencies / frequencies.sum())
    for first in range(0, count, CHUNK):
        random = np.random.default_rng([0, first])
        lengths = random.poisson(LENGTH, min(CHUNK, count - first)).clip(1)
        ranks = np.searchsorted(cumulative, random.random(lengths.sum())).clip(max=VOCABULARY - 1)
        yield from np.split(ranks, np.cumsum(lengths)[:-1])


def texts(count: int) -> Iterator[str]:
    words = np.array(vocabulary(), object)
    return (" ".join(words[ranks]) for ranks in passages(count))


def queries(count: int) -> tuple[list[str], Any]:
    """Texts and vectors (n, D) of queries, each made from a passage."""
    random, words = np.random.default_rng(1), np.array(vocabulary(), object)
    sources = set(random.choice(count, QUERIES * ROUNDS, replace=False).tolist())
    query_ranks = [random.choice(ranks, QUERY_LENGTH) for number, ranks in enumerate(passages(count)) if number in sources]
    rows, noise = synthetic(count)[sorted(sources)], random.standard_normal((len(sources), WIDTH))
    noise -= (noise * rows).sum(1, keepdims=True) * rows
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    vectors = COSINE * rows + np.sqrt(1 - COSINE**2) * noise
    return [FIRST, *(" ".join(words[ranks]) for ranks in query_ranks)], np.concatenate([vectors[:1], vectors]).astype(np.float32)


def build(folder: Path, count: int) -> None:
    """An index of synthetic rows and words, what bm25s searches, and the queries; in a process of its own, so that no memory stays."""
    import bm25s

    from promptdsi import Corpus, Document, Index
    from promptdsi.corpus.split_words import split_words
    from promptdsi.engine.postings import Postings, WordStatistics
    from promptdsi.index.blobs import Ids
    from promptdsi.index.entry import Entry

    first = Corpus([Document("tea", "Tea is brewed with water."), Document("bats", "Bats hear their way.")])
    store = Index.create(folder / "index", first, effort="quick", offline=True, device="cpu").store
    postings, blobs = Postings.build(texts(count)), store.blobs
    ids = blobs.put_json(Ids(2, [f"synthetic-{number}" for number in range(count)], "0" * 64 * count)._asdict())
    rows, words = blobs.put_rows(synthetic(count), since=2), blobs.put_words(postings, since=2)
    manifest = store.manifest()
    corpora = (*manifest.corpora, Entry("synthetic", since=2, count=count, rows=rows, ids=ids, words=words))
    measured = blobs.put_statistics(WordStatistics.of(postings))
    store.commit(replace(manifest, number=2, parent=1, kind="add", corpora=corpora, statistics=measured))
    query_texts, vectors = queries(count)
    (folder / "queries.json").write_text(json.dumps(query_texts))
    np.save(folder / "queries.npy", vectors)
    index = bm25s.BM25()
    index.index([split_words(text) or ["\0"] for text in texts(count)], show_progress=False)
    index.save(folder / "bm25")


# Systems, each in a process of its own ------------------------------------------------------------------------------------


def contestant(name: str, folder: Path) -> Ranker:
    if name == BM25:
        import bm25s

        from promptdsi.corpus.split_words import split_words

        index = bm25s.BM25.load(folder / "bm25")
        return lambda batch: index.retrieve([split_words(query) for query in batch], k=10, show_progress=False)
    from promptdsi import Index
    from promptdsi.engine.quantized import single_threaded_blas

    generation = Index.open(folder / "index", check=False).opened
    table, words = generation.table, generation.words
    numbers = {query: number for number, query in enumerate(json.loads((folder / "queries.json").read_text()))}
    vectors = np.load(folder / "queries.npy")

    def search(batch: list[str]) -> Any:
        with single_threaded_blas():
            word_queries = [words.query(query) for query in batch] if words and name == HYBRID else None
            return table.top(vectors[[numbers[query] for query in batch]], 10, word_queries)

    return search


def build_speed(what: str, count: int) -> float:
    """Passages a second, on one core: word weights as an index stores them, or bm25s's index of the same words."""
    from promptdsi.corpus.split_words import split_words
    from promptdsi.engine.postings import Postings

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    written = list(texts(count))
    started = time.perf_counter()
    if what == BM25:
        import bm25s

        bm25s.BM25().index([split_words(text) or ["\0"] for text in written], show_progress=False)
    else:
        Postings.build(written)
    return count / (time.perf_counter() - started)


# Measuring ----------------------------------------------------------------------------------------------------------------


def measure(folder: Path, count: int) -> dict[str, Any]:
    """All systems at one size: single queries and a batch, in rounds; then building, in turn."""
    query_texts = json.loads((folder / "queries.json").read_text())[1:]
    systems = {name: Contestant(name, folder, MODULE) for name in SYSTEMS}
    rounds: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        taken: dict[str, list[float]] = {name: [] for name in systems}
        for query in query_texts[number * QUERIES : (number + 1) * QUERIES]:
            for name, system in systems.items():
                taken[name] += system.rank_queries([[query]])
        batches = {name: min(system.rank_queries([query_texts[:BATCH], query_texts[:BATCH]])) for name, system in systems.items()}
        rounds.append({name: {"p50": statistics.median(taken[name]), "all": taken[name], "batch": batches[name]} for name in systems})
    memory = {name: system.memory for name, system in systems.items()}
    for system in systems.values():
        system.close()
    speeds: dict[str, list[float]] = {HYBRID: [], BM25: []}
    for _ in range(BUILDS if count < MILLION else 1):  # a million takes minutes each time
        for what, values in speeds.items():
            command = [sys.executable, "-m", MODULE, "--speed", what, str(count)]
            values.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return {"passages": count, "rounds": rounds, "memory": memory, "speeds": speeds} | inspect(folder, count)


def inspect(folder: Path, count: int) -> dict[str, Any]:
    """Whether searches alone and in a batch find what scoring every passage in float64 finds, and the size of the words on disk."""
    from promptdsi import Index

    generation = Index.open(folder / "index", check=False).opened
    assert generation.words is not None
    query_texts = json.loads((folder / "queries.json").read_text())[1 : CHECKED + 1]
    vectors = np.load(folder / "queries.npy")[1 : CHECKED + 1]
    words = [generation.words.query(query) for query in query_texts]
    batched = generation.table.top(vectors, 10, words)
    exact = True
    for number, scores in enumerate(every_score(query_texts, vectors, count)):
        alone = generation.table.top(vectors[number : number + 1], 10, words[number : number + 1])
        best = np.sort(scores)[::-1][:10]
        for top_scores, rows in ((alone.scores[0], alone.rows[0]), (batched.scores[number], batched.rows[number])):
            # The first two rows are not synthetic. Scores are rounded to float32.
            exact &= bool((rows >= 2).all() and np.abs(top_scores - best).max() < 1e-6 and np.abs(scores[rows - 2] - best).max() < 1e-6)
    stored = sum(generation.store.blobs.size(entry.words) for entry in generation.manifest.corpora if entry.words)
    return {"exact": exact, "bytes": stored / count}


def every_score(query_texts: list[str], vectors: Any, count: int) -> Iterator[Any]:
    """The score of every synthetic passage (N,) by the formula, in float64, from the ranks the texts were made of."""
    names = vocabulary()
    stop = next(rank for rank, name in enumerate(names) if name == "w0")
    rank_of = {name: rank for rank, name in enumerate(names)}
    lengths, holders = np.zeros(count), dict[int, dict[int, int]]()
    query_terms = {rank_of[word] for query in query_texts for word in query.split()}
    for number, ranks in enumerate(passages(count)):
        content = ranks[ranks >= stop]
        lengths[number] = len(content)
        for rank in query_terms.intersection(content.tolist()):
            holders.setdefault(rank, {})[number] = int((content == rank).sum())
    penalty = 1.5 * (0.25 + 0.75 * lengths / lengths[lengths > 0].mean())
    present, rows = int((lengths > 0).sum()), synthetic(count)
    for query, vector in zip(query_texts, vectors, strict=True):
        total, covered = 0.0, np.zeros(count)
        for rank in (rank_of[word] for word in query.split() if rank_of[word] >= stop):
            frequency = len(holders[rank])
            idf = np.log(1 + (present - frequency + 0.5) / (frequency + 0.5))
            numbers, counts = (np.array(part) for part in zip(*holders[rank].items(), strict=True))
            covered[numbers] += idf * counts / (counts + penalty[numbers])
            total += idf
        products = np.concatenate([rows[first : first + CHUNK].astype(np.float64) @ vector for first in range(0, count, CHUNK)])
        yield products + (covered / total if total else 0.0)


def table_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name in SYSTEMS:
        rounds = [timings[name] for timings in result["rounds"]]
        p50, batch = (middle([1e3 * timing[part] for timing in rounds]) for part in ("p50", "batch"))
        speeds = result["speeds"].get(name)
        rows.append(
            {
                "passages": result["passages"],
                "system": name,
                "one query, p50 ms": round(p50["median"], 2),
                "from … to": f"{p50['low']:.2f} … {p50['high']:.2f}",
                "p99 ms": round(float(np.quantile([1e3 * taken for timing in rounds for taken in timing["all"]], 0.99)), 2),
                "64 queries, per s": round(1e3 * BATCH / batch["median"]),
                "memory of its own, MiB": round(result["memory"][name]["RssAnon"]),
                "mapped, MiB": round(result["memory"][name]["RssFile"]),
                "words built, passages/s on one core": f"{statistics.median(speeds):,.0f}" if speeds else "",
                "slowest … fastest": f"{min(speeds):,.0f} … {max(speeds):,.0f}" if speeds else "",
            }
        )
    return rows


def ratios(result: dict[str, Any]) -> dict[str, Any]:
    rounds, speeds = result["rounds"], result["speeds"]

    def over(part: str, name: str, other: str) -> dict[str, float]:
        return middle([timings[name][part] / timings[other][part] for timings in rounds])

    return {
        "one query, rows and words × rows alone": over("p50", HYBRID, ROWS),
        "one query, rows and words × bm25s": over("p50", HYBRID, BM25),
        "64 queries, rows and words × rows alone": over("batch", HYBRID, ROWS),
        "64 queries, rows and words × bm25s": over("batch", HYBRID, BM25),
        "building, passages a second ÷ bm25s": middle([ours / theirs for ours, theirs in zip(speeds[HYBRID], speeds[BM25], strict=True)]),
        "memory beside mapped files that words add, MiB": round(result["memory"][HYBRID]["RssAnon"] - result["memory"][ROWS]["RssAnon"]),
        "words on disk, bytes per passage": round(result["bytes"]),
        "the same ten documents as scoring every passage in float64": "yes" if result["exact"] else "NO",
    }


def main() -> None:
    if sys.argv[1:2] == ["--answer"]:
        return answer(lambda: contestant(sys.argv[2], Path(sys.argv[3])))
    if sys.argv[1:2] == ["--build"]:
        return build(Path(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1:2] == ["--speed"]:
        return print(build_speed(sys.argv[2], int(sys.argv[3])))
    results = []
    for count in (*SIZES, *([MILLION] if "--million" in sys.argv else [])):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", MODULE, "--build", folder, str(count)], check=True)
            results.append(measure(Path(folder), count))
    table = [row for result in results for row in table_rows(result)]
    figures = {f"{result['passages']:,} passages": ratios(result) for result in results}
    load = round(os.getloadavg()[2], 1)  # of a quiet machine about 2; what is more was busy with something else
    facts: dict[str, Any] = {"rounds": ROUNDS, "queries": QUERIES * ROUNDS, "load of the machine, mean of 15 minutes": load}
    evidence.write("bench-words", "Words beside rows", "make bench", table, **facts, ratios=figures)


if __name__ == "__main__":
    main()
