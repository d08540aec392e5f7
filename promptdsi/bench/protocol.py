"""How a method is led through a stream: corpus after corpus, and after each step everything seen so far is asked.

What comes out is P[t][i] as ranks of single queries; no figure is computed here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

from promptdsi.bench.cells import pack
from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.streams import Stream
from promptdsi.evaluation.evaluate import load_queries, rank_queries
from promptdsi.evaluation.metrics import QueryRanks
from promptdsi.methods.method import Method
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import uncached_seconds, use_cache


class Protocol:
    """The stream's questions, and how a method is led through it."""

    def __init__(self, stream: Stream, split: str, progress: Progress = silent) -> None:
        self.stream, self.split, self.progress = stream, split, progress
        self.load_queries = [load_queries(corpus, split) for corpus in stream.corpora]

    def query_ranks(self, method: Method, corpus: int) -> list[QueryRanks]:
        """The ranks of a corpus's answers."""
        return rank_queries(method, self.load_queries[corpus]).query_ranks

    def data(self) -> dict[str, Any]:
        """What the figures are about: sizes, and a checksum of every corpus's queries and answers."""
        asked = [[[one.queryid, one.text, one.relevant] for one in corpus] for corpus in self.load_queries]
        sums = [hashlib.sha256(json.dumps(corpus).encode()).hexdigest()[:16] for corpus in asked]
        return {"stream": self.stream.name, "split": self.stream.split, "sizes": self.stream.table(), "queries": {self.split: sums}}

    def run(self, method: Method) -> dict[str, Any]:
        """Learn D1 … DT (together, for references that do), and ask everything seen so far after every step."""
        last = len(self.stream.corpora) - 1
        ranks = {"0": [pack(self.query_ranks(method, 0))]}
        arrivals = [(last, union(self.stream.corpora[1:]))] if method.at_once else list(enumerate(self.stream.corpora))[1:]
        steps = []
        for step, corpus in arrivals:
            started = uncached_seconds()
            method.add(corpus, progress=self.progress)
            seconds = uncached_seconds() - started
            logs: Sequence[Any] = getattr(method, "logs_", ())
            steps.append({"corpus": corpus.name, "documents": len(corpus), "seconds": round(seconds, 3), **trained(logs)})
            ranks[str(step)] = [pack(self.query_ranks(method, i)) for i in range(step + 1)]
        return {
            "rehearsal_free": method.rehearsal_free,
            "trained_parameters": method.trained_parameters(),
            "extra_bytes": method.extra_bytes(),
            "steps": steps,
            "queries_per_second": self.speed(method),
            "chosen": self.chosen(method),
            "topics": self.topics(method),
            "ranks": {self.split: ranks},
        }

    def speed(self, method: Method, most: int = 512) -> float:
        """Queries answered per second, in one batch: top ten of all documents."""
        texts = [one.text for one in self.load_queries[0][:most]]
        with use_cache(None):  # a search encodes its queries
            started = uncached_seconds()
            method.search(texts, k=10)
            return round(len(texts) / (uncached_seconds() - started), 1)

    def chosen(self, method: Method) -> dict[str, list[list[int]]] | None:
        """How often each prompt is chosen by the test queries of each corpus, where prompts are chosen."""
        counts = getattr(method, "prompt_counts", None)
        if counts is None or self.split != "test":
            return None
        asked = [[one.text for one in corpus] for corpus in self.load_queries]
        found = [counts(texts) for texts in asked]
        return {"test": found} if found[0] is not None else None

    def topics(self, method: Method) -> dict[str, Any] | None:
        """Words and sizes of the topics; the queries that choose each only where the text is ours to print."""
        found = getattr(method, "topics_", None)
        if found is None or not isinstance(method, PromptDSI) or self.split != "test":
            return None
        examples: list[list[str]] | None = None
        if self.stream.name == "demo":
            examples = [[] for _ in found.words]
            for one in self.load_queries[0]:
                counts = cast("list[int]", method.prompt_counts([one.text]))  # topics choose
                examples[counts.index(1)].append(one.text)
        weights = [[round(weight, 5) for weight in own] for own in found.weights]
        return {"words": found.words, "weights": weights, "counts": found.counts, "examples": examples}


def union(corpora: Sequence[Corpus]) -> Corpus:
    """Corpora as one."""
    qrels: dict[str, list[Any]] = {}
    for corpus in corpora:
        for split, judgements in corpus.qrels.items():
            qrels.setdefault(split, []).extend(judgements)
    queries = {query.queryid: query for corpus in corpora for query in corpus.queries}
    documents = [document for corpus in corpora for document in corpus.documents]
    return Corpus(documents, list(queries.values()), qrels, name=f"{corpora[0].name}-{corpora[-1].name}")


def trained(logs: Sequence[Any]) -> dict[str, Any]:
    """What the last training took."""
    if not logs or not logs[-1].losses:
        return {}
    log = logs[-1]
    return {"training_seconds": round(log.seconds, 3), "training_queries": log.examples, "training_steps": len(log.losses)}
