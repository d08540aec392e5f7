"""The continual protocol: corpus after corpus is added, and after each step the queries of every corpus seen so far are ranked.

What comes out is P[t][i] as ranks of single queries; no metric is computed here.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from promptdsi.bench.run_records import CorpusSizes, StepRecord, StreamData, TopicRecord
from promptdsi.bench.runs import pack_ranks
from promptdsi.bench.schema import Split
from promptdsi.bench.unfinished import Stages, UnfinishedRun
from promptdsi.corpus.corpus import Corpus, merge_corpora
from promptdsi.corpus.streams import Stream
from promptdsi.evaluation.evaluate import load_queries, rank_queries
from promptdsi.methods.base import Method
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import selection_vectors, uncached_seconds, use_cache
from promptdsi.training.topics import Topics

if TYPE_CHECKING:
    from torch import Tensor


class Protocol:
    """The evaluation queries of a stream, and how a method is led through it."""

    def __init__(self, stream: Stream, split: Split, progress: Progress = silent) -> None:
        self.stream, self.split, self.progress = stream, split, progress
        self.queries = [load_queries(corpus, split) for corpus in stream.corpora]

    def ranks(self, method: Method, corpus: int) -> list[Any]:
        """The ranks of one corpus's relevant documents, one entry per query."""
        return pack_ranks(rank_queries(method, self.queries[corpus]).query_ranks)

    def data(self) -> StreamData:
        """Sizes, and a checksum of every corpus's queries and judgements."""
        contents = [[[query.queryid, query.text, query.relevant] for query in corpus] for corpus in self.queries]
        checksums = [hashlib.sha256(json.dumps(corpus).encode()).hexdigest()[:16] for corpus in contents]
        sizes = [CorpusSizes(**row) for row in self.stream.table()]
        return StreamData(stream=self.stream.name, split=self.stream.split, sizes=sizes, queries={self.split: checksums})

    def run(self, method: Method, stages: Stages, unfinished: UnfinishedRun) -> dict[str, Any]:
        """Add D1 … DT (together, for references that learn at once), rank after every step: the fields of a record.

        Steps that `stages` has already are not repeated; the others are added to it.
        """
        new, last = self.stream.corpora[1:], len(self.stream.corpora) - 1
        arrivals = [(last, merge_corpora(new, f"{new[0].name}-{new[-1].name}"))] if method.at_once else list(enumerate(new, 1))
        for step, corpus in [(0, None), *arrivals]:
            if str(step) in stages.ranks:
                continue
            if corpus is not None:
                stages.steps.append(self.add(method, corpus, unfinished.training))
            stages.ranks[str(step)] = [self.ranks(method, i) for i in range(step + 1)]
            unfinished.save(method, stages)
        return dict(stages.start) | {
            "rehearsal_free": method.rehearsal_free,
            "trained_parameters": method.trained_parameters(),
            "extra_bytes": method.extra_bytes(),
            "steps": stages.steps,
            "queries_per_second": self.speed(method),
            "prompt_counts": self.prompt_counts(method),
            "topics": self.topics(method),
            "ranks": {self.split: stages.ranks},
        }

    def add(self, method: Method, corpus: Corpus, checkpoint: Path) -> StepRecord:
        """Add one corpus; the seconds are those of an uninterrupted training."""
        started = uncached_seconds()
        method.add(corpus, checkpoint=checkpoint, progress=self.progress)
        record = StepRecord(corpus=corpus.name, documents=len(corpus), seconds=round(uncached_seconds() - started, 3))
        if (logs := getattr(method, "logs_", ())) and (losses := logs[-1].losses):
            record.seconds += round(logs[-1].seconds_before, 3)
            record.training_seconds, record.training_queries = round(logs[-1].seconds, 3), logs[-1].examples
            record.training_steps = len(losses)
        return record

    def speed(self, method: Method, most: int = 512) -> float:
        """Queries answered per second, in one batch, top ten of all documents."""
        texts = [query.text for query in self.queries[0][:most]]
        with use_cache(None):  # a search encodes its queries
            started = uncached_seconds()
            method.search(texts, k=10)
            return round(len(texts) / (uncached_seconds() - started), 1)

    def prompt_counts(self, method: Method) -> dict[str, list[list[int]]] | None:
        """How often the test queries of each corpus select each prompt, for strategies that select prompts."""
        count = getattr(method, "prompt_counts", None)
        if count is None or self.split != "test":
            return None
        counts = [count([query.text for query in corpus]) if corpus else [] for corpus in self.queries]
        if any(corpus is None for corpus in counts):
            return None
        prompts = max(map(len, counts))
        return {"test": [corpus or [0] * prompts for corpus in counts]}  # a corpus without test queries selects nothing

    def topics(self, method: Method) -> TopicRecord | None:
        """Words and sizes of the topics; the queries that select each only for the demo corpus, whose text may be committed."""
        topics = getattr(method, "topics_", None)
        if topics is None or not isinstance(method, PromptDSI) or self.split != "test":
            return None
        examples: list[list[str]] | None = None
        if self.stream.name == "demo":
            examples = [[] for _ in topics.words]
            for query in self.queries[0]:
                counts = cast("list[int]", method.prompt_counts([query.text]))  # topic prompts are always selected
                examples[counts.index(1)].append(query.text)
        weights = [[round(weight, 5) for weight in topic] for topic in topics.weights]
        queryids = self.matched_queries(method, topics)
        return TopicRecord(words=topics.words, weights=weights, counts=topics.counts, examples=examples, queryids=queryids)

    def matched_queries(self, method: PromptDSI, topics: Topics, most: int = 30) -> list[list[str]]:
        """For each topic, ids of D0's dev queries that select it and whose document belongs to it: at most so many, evenly spaced."""
        matched: list[list[str]] = [[] for _ in topics.words]
        if queries := load_queries(self.stream.corpora[0], "dev"):
            topic_of = dict(zip(method.model_.rows.docids, topics.labels.tolist(), strict=False))  # D0's rows come first
            ids = method.tokenizer_.encode([query.text for query in queries], max_tokens=method.encoding.max_tokens).ids
            selected = method.model_.strategy.select(selection_vectors(method.model_, ids, method.tokenizer_)).ids
            for query, topic in zip(queries, cast("Tensor", selected).tolist(), strict=True):
                if topic in {topic_of.get(docid) for docid in query.relevant}:
                    matched[topic].append(query.queryid)
        return [queryids[:: max(1, -(-len(queryids) // most))] for queryids in matched]
