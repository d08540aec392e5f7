"""The construction the paper inherits for its two data sets: 90 % old, 9 % new, 1 % tune documents (METHOD: data and protocol).

D0 = old; D1..D5 = consecutive chunks of the new list; the tune documents serve IncDSI's hyper-parameter search only.
Train queries are cut 80/20 into train and dev over the old, the new and the tune documents as wholes; official dev
queries are the test queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import Document, Judgement, Query
from promptdsi.corpus.splitting import seeded_order
from promptdsi.corpus.streams import Stream
from promptdsi.errors import PromptDSIError

NEW_CORPORA = 5
SMALLEST = 20  # below this one of the three parts would be empty


def cut(words: list[str], max_words: int, notes: ReadNotes) -> str:
    """A text of at most `max_words` words (0: all); what is cut is counted."""
    if max_words and len(words) > max_words:
        notes.count(f"texts are longer than {max_words:,} words and were cut there (--max-words)")
        words = words[:max_words]
    return " ".join(words)


class Labelled(NamedTuple):
    """A query of the raw files, the document it points at, and whether it comes from the official dev file."""

    query: Query
    docid: str
    official_dev: bool


class Construction(NamedTuple):
    name: str
    origin: str
    licence: str
    seed: int
    chunk: int
    max_words: int = 0
    max_new: int | None = None
    max_tune: int | None = None


def paper_stream(documents: Sequence[Document], labelled: Sequence[Labelled], how: Construction) -> Stream:
    """Build the stream; documents nothing points at are left out."""
    labelled = list({(label.query.queryid, label.docid): label for label in labelled}.values())
    pointed_at = {label.docid for label in labelled}
    by_id = {document.docid: document for document in documents if document.docid in pointed_at}
    if len(by_id) < SMALLEST:
        raise PromptDSIError(f"{how.name}: only {len(by_id)} documents have a query, at least {SMALLEST} are needed")
    order = seeded_order(list(by_id), how.seed, how.name)
    old_size, new_size = round(0.9 * len(order)), round(0.09 * len(order))
    old, new, tune = order[:old_size], order[old_size : old_size + new_size], order[old_size + new_size :]
    new, tune = new[: how.max_new], tune[: how.max_tune]
    chunks = [new[start : start + how.chunk] for start in range(0, len(new), how.chunk)][:NEW_CORPORA]
    labelled = _at_home(labelled, [tune, old, *chunks])
    splits = {}
    for part in (old, [docid for chunk in chunks for docid in chunk], tune):
        splits.update(_eighty_twenty(set(part), labelled, how.seed))
    corpora = [_corpus(f"d{number}", docids, by_id, labelled, splits) for number, docids in enumerate([old, *chunks])]
    rule = {"rule": "90/9/1", **{name: getattr(how, name) for name in ("seed", "chunk", "max_new", "max_tune", "max_words")}}
    return Stream(how.name, corpora, rule, how.origin, how.licence, extra=[_corpus("tune", tune, by_id, labelled, splits)])


def _at_home(labelled: Sequence[Labelled], parts: Sequence[list[str]]) -> list[Labelled]:
    """Each query in one place: the latest corpus among its documents (tune documents count as earliest)."""
    place = {docid: number for number, part in enumerate(parts) for docid in part}
    home: dict[str, int] = {}
    for label in labelled:
        if label.docid in place:
            home[label.query.queryid] = max(home.get(label.query.queryid, 0), place[label.docid])
    return [label for label in labelled if place.get(label.docid, -1) == home.get(label.query.queryid, -2)]


def _eighty_twenty(docids: set[str], labelled: Sequence[Labelled], seed: int) -> dict[str, str]:
    """Split of each query: exactly 80 % of the train queries of this part train, the rest are dev."""
    here = [label for label in labelled if label.docid in docids]
    splits = {label.query.queryid: "test" for label in here if label.official_dev}
    order = seeded_order(list(dict.fromkeys(label.query.queryid for label in here if not label.official_dev)), seed, "train-dev")
    cut = round(0.8 * len(order))
    return splits | dict.fromkeys(order[:cut], "train") | dict.fromkeys(order[cut:], "dev")


def _corpus(name: str, docids: list[str], by_id: dict[str, Document], labelled: Sequence[Labelled], splits: dict[str, str]) -> Corpus:
    members = set(docids)
    here = [label for label in labelled if label.docid in members]
    queries = {label.query.queryid: label.query for label in here}
    qrels: dict[str, list[Judgement]] = {}
    for label in here:
        qrels.setdefault(splits[label.query.queryid], []).append(Judgement(label.query.queryid, label.docid))
    return Corpus([by_id[docid] for docid in docids], list(queries.values()), dict(sorted(qrels.items())), name=name)


def whole(stream: Stream) -> Corpus:
    """All documents and queries of a stream as one corpus, for those who want another split."""
    corpora = [*stream.corpora, *stream.extra]
    qrels: dict[str, list[Judgement]] = {}
    for corpus in corpora:
        for split, judgements in corpus.qrels.items():
            qrels.setdefault(split, []).extend(judgements)
    queries = {query.queryid: query for corpus in corpora for query in corpus.queries}
    return Corpus([document for corpus in corpora for document in corpus.documents], list(queries.values()), qrels, name=stream.name)
