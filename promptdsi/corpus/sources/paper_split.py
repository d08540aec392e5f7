"""The split of the paper's two data sets, NQ320k and MSMARCO 300k: 90 % old, 9 % new, 1 % tune documents.

D0 = old; D1..D5 = consecutive chunks of the new list; the tune documents serve IncDSI's hyper-parameter search only.
Train queries are split 80/20 into train and dev, separately over all old, all new and all tune documents; the official
dev queries are the test queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query, ReadNotes
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.corpus.splitting import seeded_order
from promptdsi.corpus.streams import Stream
from promptdsi.errors import PromptDSIError

NEW_CORPORA = 5
MIN_DOCUMENTS = 20  # with fewer one of the three parts would be empty


def truncate_words(words: list[str], max_words: int, notes: ReadNotes) -> str:
    """Join at most `max_words` words (0: all); truncated texts are counted in the notes."""
    if max_words and len(words) > max_words:
        notes.count(f"texts are longer than {max_words:,} words and were cut there (--max-words)")
        words = words[:max_words]
    return " ".join(words)


class LabeledQuery(NamedTuple):
    """A query of the raw files, its relevant document, and whether it comes from the official dev file."""

    query: Query
    docid: str
    official_dev: bool


def paper_data(
    data: SourceData, labeled: Sequence[LabeledQuery], request: Request, *, max_new: int | None = None, max_tune: int | None = None
) -> SourceData:
    """Split the documents of a source as in the paper; those without a query are left out."""
    name = data.corpus.name
    labeled = list({(label.query.queryid, label.docid): label for label in labeled}.values())
    relevant = {label.docid for label in labeled}
    by_id = {document.docid: document for document in data.corpus.documents if document.docid in relevant}
    if len(by_id) < MIN_DOCUMENTS:
        raise PromptDSIError(f"{name}: only {len(by_id)} documents have a query, at least {MIN_DOCUMENTS} are needed")
    order = seeded_order(list(by_id), request.seed, name)
    old_size, new_size = round(0.9 * len(order)), round(0.09 * len(order))
    old, new, tune = order[:old_size], order[old_size : old_size + new_size], order[old_size + new_size :]
    new, tune = new[:max_new], tune[:max_tune]
    chunks = [new[start : start + request.chunk] for start in range(0, len(new), request.chunk)][:NEW_CORPORA]
    labeled = _in_one_corpus(labeled, [tune, old, *chunks])
    splits = {}
    for part in (old, [docid for chunk in chunks for docid in chunk], tune):
        splits.update(_eighty_twenty(set(part), labeled, request.seed))
    corpora = [_corpus(f"d{number}", docids, by_id, labeled, splits) for number, docids in enumerate([old, *chunks])]
    extra = [_corpus("tune", tune, by_id, labeled, splits)]
    sizes = {"chunk": request.chunk, "max_new": max_new, "max_tune": max_tune, "max_words": request.max_words}
    rule = {"rule": "90/9/1", "seed": request.seed, **sizes}
    stream = Stream(name, corpora, rule, data.origin, data.licence, extra)
    return data._replace(corpus=merge_corpora(name, [*corpora, *extra]), default_stream=stream)


def _in_one_corpus(labeled: Sequence[LabeledQuery], parts: Sequence[list[str]]) -> list[LabeledQuery]:
    """Keep each query in one corpus: the latest among its documents (tune documents count as earliest)."""
    part_of = {docid: number for number, part in enumerate(parts) for docid in part}
    latest: dict[str, int] = {}
    for label in labeled:
        if label.docid in part_of:
            latest[label.query.queryid] = max(latest.get(label.query.queryid, 0), part_of[label.docid])
    return [label for label in labeled if part_of.get(label.docid, -1) == latest.get(label.query.queryid, -2)]


def _eighty_twenty(docids: set[str], labeled: Sequence[LabeledQuery], seed: int) -> dict[str, str]:
    """The split of each query of this part: exactly 80 % of the train queries are train, the rest are dev."""
    labels = [label for label in labeled if label.docid in docids]
    splits = {label.query.queryid: "test" for label in labels if label.official_dev}
    order = seeded_order(list(dict.fromkeys(label.query.queryid for label in labels if not label.official_dev)), seed, "train-dev")
    train = round(0.8 * len(order))
    return splits | dict.fromkeys(order[:train], "train") | dict.fromkeys(order[train:], "dev")


def _corpus(name: str, docids: list[str], by_id: dict[str, Document], labeled: Sequence[LabeledQuery], splits: dict[str, str]) -> Corpus:
    members = set(docids)
    labels = [label for label in labeled if label.docid in members]
    queries = {label.query.queryid: label.query for label in labels}
    qrels: dict[str, list[Judgement]] = {}
    for label in labels:
        qrels.setdefault(splits[label.query.queryid], []).append(Judgement(label.query.queryid, label.docid))
    return Corpus([by_id[docid] for docid in docids], list(queries.values()), dict(sorted(qrels.items())), name=name)


def merge_corpora(name: str, corpora: Sequence[Corpus]) -> Corpus:
    """All documents and queries of some corpora as one corpus, for another split."""
    qrels: dict[str, list[Judgement]] = {}
    for corpus in corpora:
        for split, judgements in corpus.qrels.items():
            qrels.setdefault(split, []).extend(judgements)
    queries = {query.queryid: query for corpus in corpora for query in corpus.queries}
    return Corpus([document for corpus in corpora for document in corpus.documents], list(queries.values()), qrels, name=name)
