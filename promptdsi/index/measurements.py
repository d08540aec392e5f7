"""What is measured of training: how long it will take, whether new documents are found, and how far old queries drifted.

Probe queries are opened after the new blobs are on disk: training cannot depend on them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.evaluation.evaluate import EvalQuery, Ranker, load_queries, rank_queries, values
from promptdsi.index.generation import Generation
from promptdsi.index.manifest import Manifest
from promptdsi.index.method_io import EFFORTS
from promptdsi.index.results import Drift, Report, WorkEstimate
from promptdsi.index.store import Store
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.training.distributed import team
from promptdsi.training.encoding import encode_batches
from promptdsi.training.examples import TrainingPair

CHARACTERS_PER_TOKEN, CHARACTERS_PER_SPAN, BACKWARD = 4.5, 55, 3.2  # a training step costs BACKWARD forward passes
FIXED_BYTES = 600_000_000  # Python and its libraries
MULTIPLICATIONS_PER_SECOND = 1e11
REPORTED = 500  # dev queries and documents that a report looks at, sample at random: more would delay it and tell little


class Evaluated(NamedTuple):
    """What is evaluated, and which documents can be retrieved from it."""

    ranker: Ranker
    contains: Callable[[Sequence[str]], list[bool]]

    @classmethod
    def method(cls, method: PromptDSI) -> Self:
        rows = method.model_.rows
        return cls(method, lambda docids: [docid in rows.row_of and rows.row_of[docid] not in rows.deleted for docid in docids])

    @classmethod
    def generation(cls, generation: Generation) -> Self:
        return cls(generation.ranker, generation.passages.contains)


def estimate_work(method: PromptDSI, corpus: Corpus, pairs: Sequence[TrainingPair], *, first: bool) -> WorkEstimate:
    """Documents, queries, and roughly how long and how much memory, from the encoder's speed on a few texts; no pairs: no training."""
    encoding, options = method.encoding, method.fit_options if first else method.add_options
    annotated = [pair.query.text for pair in corpus.pairs("train", kinds=("annotated",))]
    limit = math.inf if encoding.passage_tokens else encoding.document_tokens * encoding.document_windows
    document_tokens = [len(whole_text(document)) / CHARACTERS_PER_TOKEN for document in corpus.documents]
    speed = _tokens_per_second(method, [pair.text for pair in pairs[:256]] or [document.text for document in corpus.documents[:32]])
    new = len(method.passages(corpus).docids)
    width, rows = method.model_.rows.width, -(-(len(method.model_.rows) + new) // team().size)  # of each process
    generated = method.pseudo_queries * new  # at most; exact once there are pairs
    lengths = [len(pair.text) for pair in pairs] or [*map(len, annotated), *[CHARACTERS_PER_SPAN] * generated]
    encode = sum(min(tokens, limit) for tokens in document_tokens) / speed
    epoch = sum(min(2 + length / CHARACTERS_PER_TOKEN, encoding.max_tokens) for length in lengths) / speed
    products = 6 * width * new * len(lengths) / MULTIPLICATIONS_PER_SECOND  # of an epoch
    frozen, trained = encode + epoch + products * options.epochs, encode + (epoch * BACKWARD + products) * options.epochs
    by_level = {"nothing": encode, "rows": frozen, "everything": trained}
    level = method.fit_options.learn if first else "nothing" if not pairs else "rows" if method.prompts == "none" else "everything"
    memory = 4 * sum(weight.numel() for weight in method.model_.encoder.parameters())
    if first and level == "everything":
        memory = 4 * memory + 16 * rows * width + 4 * 2 * options.batch_size * rows
    elif pairs:
        memory += 4 * rows * width + 4 * len(pairs) * width + 4 * 2 * options.batch_size * rows
    texts, truncated = set(annotated), sum(tokens > limit for tokens in document_tokens)
    work = WorkEstimate(len(corpus), len(pairs), sum(pair.text not in texts for pair in pairs), truncated)
    work = work._replace(seconds=by_level[level], bytes=memory + FIXED_BYTES)
    return work._replace(efforts=tuple((effort, by_level[what["learn"]]) for effort, what in EFFORTS.items())) if first else work


def _tokens_per_second(method: PromptDSI, texts: list[str]) -> float:
    """The encoder's speed on these texts, the first pass not counted."""
    ids = method.tokenizer_.encode(texts or ["how fast"], max_tokens=method.encoding.max_tokens).ids
    seconds = 0.0
    with torch.no_grad():
        for _ in range(2):
            started = time.perf_counter()
            encode_batches(method.model_.unprompted, ids, method.tokenizer_, method.model_.device)
            seconds = time.perf_counter() - started
    return sum(len(text) for text in ids) / max(seconds, 1e-9)


def measure_training(method: PromptDSI, ranker: Ranker, corpus: Corpus, pairs: Sequence[TrainingPair], report: Report) -> Report:
    """The report with dev Hits@10, and the documents that none of their training queries retrieves in the first ten."""
    rng, queries = random.Random(method.seed), load_queries(corpus, "dev")
    dev = rank_queries(ranker, rng.sample(queries, min(REPORTED, len(queries))))
    hits = float(values("Hits@10", dev.query_ranks).mean()) if dev.query_ranks else None
    report = replace(report, dev_hits10=hits, dev_queries=len(dev.query_ranks), truncated=method.truncated_documents_)
    if report.fast:
        return report
    by_document: dict[str, list[str]] = {}
    for pair in pairs:
        by_document.setdefault(pair.docid, []).append(pair.text)
    sample = {docid: by_document[docid] for docid in rng.sample(list(by_document), min(REPORTED, len(by_document)))}
    truncated = sum(method.tokenizer_.encode([pair.text for pair in pairs], max_tokens=method.encoding.max_tokens).truncated)
    report = replace(report, queries=len(pairs), truncated_queries=truncated, unfindable=_unfindable(ranker, sample))
    return replace(report, examined=len(sample), unexamined=len(by_document) - len(sample))


def _unfindable(ranker: Ranker, queries: Mapping[str, Sequence[str]]) -> list[str]:
    """The documents that none of their queries retrieves in the first ten."""
    missing = list(queries)
    for turn in range(max(map(len, queries.values()), default=0)):  # nearly all are retrieved in the first turn
        pending = [docid for docid in missing if turn < len(queries[docid])]
        results = ranker.search([queries[docid][turn] for docid in pending], k=10)
        retrieved = {docid for docid, result in zip(pending, results, strict=True) if docid in result.docids}
        missing = [docid for docid in missing if docid not in retrieved]
    return missing


def measure_drift(
    store: Store, parent: Manifest, before: Callable[[], Evaluated], after: Evaluated, *, without: str | None = None
) -> Drift | None:
    """Hits@10 on the stored probe queries, of all corpora but one, before and after; None where there are none."""
    probes = []
    for entry in parent.corpora:
        if entry.probes and entry.name != without:
            store.blobs.check(entry.probes, parent.sizes[entry.probes])
            for number, probe in enumerate(store.blobs.list(entry.probes, "probes")):
                probes.append(EvalQuery(f"{entry.name} {number}", probe["text"], dict.fromkeys(probe["docids"], 1.0)))
    if not probes:
        return None
    states, docids = (before(), after), sorted({docid for probe in probes for docid in probe.relevant})
    present = zip(docids, *(state.contains(docids) for state in states), strict=True)
    shared = {docid for docid, *contained in present if all(contained)}
    queries = [query for query in probes if not shared.isdisjoint(query.relevant)]
    if not queries:
        return None
    results = [rank_queries(state.ranker, queries, in_index=shared.__contains__) for state in states]
    hits = [float(values("Hits@10", result.query_ranks).mean()) for result in results]
    return Drift(hits[0], hits[1], len(queries), fall=hits[0] - hits[1])
