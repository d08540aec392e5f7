"""Evaluation of an index on a corpus, and the records of it: the best rank of each query, no text. They make the retention chart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import DataError
from promptdsi.evaluation.evaluate import EvalResult, load_queries, rank_queries, write_run
from promptdsi.evaluation.metrics import QueryRanks
from promptdsi.files import atomic_write
from promptdsi.index.manifest import FORMAT, sealed, unsealed
from promptdsi.index.results import EvalRecord
from promptdsi.index.snapshot import Snapshot
from promptdsi.index.store import Store


def evaluate_split(snapshot: Snapshot, corpus: Corpus, split: str, run: Path | None, run_k: int) -> EvalResult:
    """Exact ranks of the relevant documents of a split's queries; `run` is a TREC run file to write."""
    queries = load_queries(corpus, split)
    result = rank_queries(snapshot.method, queries, in_index=lambda docid: snapshot.live(docid) is not None)
    if not result.query_ranks:
        what = f"has no annotated {split} queries" if not queries else f"has no {split} query whose document is in the index"
        raise DataError(f"the corpus {corpus.name} {what}", path=snapshot.store.folder)
    if run is not None:
        if not run.parent.is_dir():
            raise DataError("is no folder to write a run file to", path=run.parent)
        texts = [query.text for query in result.queries]
        write_run(run, result.queries, snapshot.method.search(texts, k=run_k), tag="promptdsi")
    return result


def write_record(store: Store, *, generation: int, corpus: str, split: str, query_ranks: Sequence[QueryRanks]) -> Path:
    """Store the best rank of each query; the same evaluation again replaces its record."""
    key = hashlib.sha256(f"{corpus}\0{split}".encode()).hexdigest()[:16]
    path = store.folder / "records" / f"{generation:06d}-{key}.json"
    record = EvalRecord(generation, corpus, split, [min(ranks.ranks) for ranks in query_ranks])
    with store.writing(), atomic_write(path) as file:
        file.write(sealed({"format": FORMAT} | record._asdict()))
    return path


def read_records(store: Store) -> list[EvalRecord]:
    """All records, by generation, corpus and split."""
    contents = [unsealed(path) for path in (store.folder / "records").glob("*.json")]
    return sorted(EvalRecord(*(content[name] for name in EvalRecord._fields)) for content in contents)
