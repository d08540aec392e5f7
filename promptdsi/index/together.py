"""Creating an index with several processes (`torchrun -m promptdsi create …`): one locks, reads and commits, all learn.

Helpers get the corpus from the first process, so that only that one needs the files; as JSON, never pickled.
"""

from __future__ import annotations

import json

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import Document, Judgement, Query
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.training.distributed import join, share


def call_helpers(corpus: Corpus) -> None:
    """Give the corpus to the processes that wait in `help_create`, if there are any."""
    if join().size > 1:
        documents = [[*document[:3], dict(document.metadata)] for document in corpus.documents]
        queries = [[*query[:3], dict(query.metadata)] for query in corpus.queries]
        share(json.dumps([documents, queries, corpus.qrels, corpus.name]).encode("utf-8"))


def help_create(method: PromptDSI) -> None:
    """Learn with the first process, and leave the rest to it."""
    join()
    documents, queries, qrels, name = json.loads(share())
    corpus = Corpus(
        [Document(*document) for document in documents],
        [Query(*query) for query in queries],
        {split: [Judgement(*judgement) for judgement in rows] for split, rows in qrels.items()},
        name=name,
    )
    method.fit(corpus)
