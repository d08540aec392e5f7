"""What is measured of an index: the work before training, retrieval of the new documents after it, drift on probe queries, and splits.

Probe queries are opened after the new blobs are on disk: training cannot depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.errors import DataError
from promptdsi.evaluation.evaluate import EvalQuery, EvalResult, load_queries, rank_queries, values, write_run
from promptdsi.index.generation import Generation
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import Drift, Report, WorkEstimate
from promptdsi.index.store import Store
from promptdsi.progress import Progress

if TYPE_CHECKING:
    from promptdsi.methods.promptdsi import PromptDSI
    from promptdsi.training.examples import TrainingPair

CHARACTERS_PER_TOKEN = 4.5
BACKWARD = 3.2  # a training step costs this many forward passes
FIXED_BYTES = 600_000_000  # Python and its libraries
MULTIPLICATIONS_PER_SECOND = 5e10


def estimate_work(method: PromptDSI, corpus: Corpus, pairs: Sequence[TrainingPair], *, first: bool) -> WorkEstimate:
    """Documents, queries, and roughly how long and how much memory, from the encoder's speed on a few texts; no pairs: no training."""
    encoding, options = method.encoding, method.fit_options if first else method.add_options
    annotated = {pair.query.text for pair in corpus.pairs("train")}
    limit = encoding.document_tokens * encoding.document_windows
    document_tokens = [len(whole_text(document)) / CHARACTERS_PER_TOKEN for document in corpus.documents]
    query_tokens = sum(min(2 + len(pair.text) / CHARACTERS_PER_TOKEN, encoding.max_tokens) for pair in pairs)
    speed = _tokens_per_second(method, [pair.text for pair in pairs[:32]] or [document.text for document in corpus.documents[:8]])
    seconds, epoch = sum(min(tokens, limit) for tokens in document_tokens) / speed, query_tokens / speed
    width, rows = method.model_.rows.width, len(method.model_.rows) + len(corpus)
    memory = 4 * sum(weight.numel() for weight in method.model_.encoder.parameters())
    if first:
        seconds += epoch * BACKWARD * options.epochs
        memory = 4 * memory + 16 * rows * width + 4 * 2 * options.batch_size * rows
    elif pairs:
        steps = options.epochs * len(pairs) / options.batch_size
        products = 6 * width * options.batch_size * len(corpus) * steps / MULTIPLICATIONS_PER_SECOND
        seconds += epoch + products if method.prompts == "none" else epoch * BACKWARD * options.epochs + products
        memory += 4 * rows * width + 4 * len(pairs) * width + 4 * 2 * options.batch_size * rows
    generated = sum(pair.text not in annotated for pair in pairs)
    truncated = sum(tokens > limit for tokens in document_tokens)
    return WorkEstimate(len(corpus), len(pairs), generated, truncated, seconds, memory + FIXED_BYTES)


def _tokens_per_second(method: PromptDSI, texts: list[str]) -> float:
    """The encoder's speed on these texts, the first pass not counted."""
    import torch

    ids = method.tokenizer_.encode(texts or ["how fast"], max_tokens=method.encoding.max_tokens).ids
    tokens = method.tokenizer_.pad(ids, method.model_.encoder.word.weight.device)
    seconds = 0.0
    with torch.no_grad():
        for _ in range(2):
            started = time.perf_counter()
            method.model_.unprompted(tokens)
            seconds = time.perf_counter() - started
    return sum(len(text) for text in ids) / max(seconds, 1e-9)


def measure_training(method: PromptDSI, corpus: Corpus, pairs: Sequence[TrainingPair], report: Report, progress: Progress) -> Report:
    """The report with dev Hits@10, and the documents that none of their training queries retrieves in the first ten."""
    import torch

    dev = rank_queries(method, load_queries(corpus, "dev"))
    hits = float(values("Hits@10", dev.query_ranks).mean()) if dev.query_ranks else None
    report = replace(report, dev_hits10=hits, dev_queries=len(dev.query_ranks), truncated=method.truncated_documents_)
    if report.fast:
        return report
    rows, texts = method.model_.rows, [pair.text for pair in pairs]
    with torch.no_grad():
        vectors = method.encode(texts, progress=progress)
        ranks = rows.ranks(vectors, rows.numbers([pair.docid for pair in pairs]).to(vectors.device)).tolist()
    best = {pair.docid: rank for pair, rank in sorted(zip(pairs, ranks, strict=True), key=lambda ranked: -ranked[1])}
    truncated = sum(method.tokenizer_.encode(texts, max_tokens=method.encoding.max_tokens).truncated)
    unfindable = [docid for docid, rank in best.items() if rank > 10]
    return replace(report, queries=len(pairs), truncated_queries=truncated, unfindable=unfindable)


def measure_drift(store: Store, parent: Manifest, after: PromptDSI, *, device: str, without: str | None = None) -> Drift | None:
    """Hits@10 on the stored probe queries, of all corpora but one, before and after; None where there are none."""
    probes = _stored_probes(store, parent, without)
    if not probes:
        return None
    from promptdsi.index.method_io import load_method

    before = load_method(store, parent, device=device)
    shared = _live_docids(before) & _live_docids(after)
    queries = [query for query in probes if not shared.isdisjoint(query.relevant)]
    if not queries:
        return None
    results = [rank_queries(method, queries, in_index=shared.__contains__) for method in (before, after)]
    hits = [float(values("Hits@10", result.query_ranks).mean()) for result in results]
    return Drift(hits[0], hits[1], len(queries))


def _stored_probes(store: Store, manifest: Manifest, without: str | None) -> list[EvalQuery]:
    probes = []
    for entry in manifest.corpora:
        if entry.probes and entry.name != without:
            store.blobs.check(entry.probes, manifest.sizes[entry.probes])
            for number, probe in enumerate(store.blobs.list(entry.probes)):
                probes.append(EvalQuery(f"{entry.name} {number}", probe["text"], dict.fromkeys(probe["docids"], 1.0)))
    return probes


def _live_docids(method: PromptDSI) -> set[str]:
    rows = method.model_.rows
    return {docid for docid, row in rows.row_of.items() if row not in rows.deleted}


def evaluate_split(generation: Generation, corpus: Corpus, split: str, run: Path | None, run_k: int) -> EvalResult:
    """Exact ranks of the relevant documents of a split's queries; `run` is a TREC run file to write."""
    queries = load_queries(corpus, split)
    result = rank_queries(generation.method, queries, in_index=lambda docid: generation.live_row(docid) is not None)
    if not result.query_ranks:
        what = f"has no annotated {split} queries" if not queries else f"has no {split} query whose document is in the index"
        raise DataError(f"the corpus {corpus.name} {what}", path=generation.store.folder)
    if run is not None:
        if not run.parent.is_dir():
            raise DataError("is no folder to write a run file to", path=run.parent)
        texts = [query.text for query in result.queries]
        write_run(run, result.queries, generation.method.search(texts, k=run_k), tag="promptdsi")
    return result
