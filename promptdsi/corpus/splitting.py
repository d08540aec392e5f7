"""Three ways to split a corpus into D0, D1, … DT: at random, by a field's value, by date.

The random order is a hash of seed and docid, so a split depends on seed and ids only: not on the order of the input, the
platform or a library's version.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence

from promptdsi.corpus.corpus import SPLITS, Corpus, Document
from promptdsi.errors import PromptDSIError, UsageError


def seeded_order(names: Sequence[str], seed: int, salt: str) -> list[str]:
    """The names in a random order that depends on seed, salt and names only."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{salt}\0{seed}\0{name}".encode()).digest())


def sample(corpus: Corpus, size: int, *, seed: int, after: int = 0, name: str = "") -> Corpus:
    """A random sample of documents, in their original order, with their queries; it shares none with the sample of size `after`."""
    if size < 1:
        raise UsageError(f"--limit {size}: at least one document is needed")
    chosen = set(seeded_order([document.docid for document in corpus.documents], seed, "sample")[after : after + size])
    return corpora_of_groups(corpus, {name or corpus.name: [document for document in corpus.documents if document.docid in chosen]})[0]


def keep_values(corpus: Corpus, field: str, values: Sequence[str]) -> Corpus:
    """The documents that have one of the values in a metadata field, with their queries."""
    documents = [document for document in corpus.documents if str(document.metadata.get(field)) in values]
    if not documents:
        raise UsageError(f"no document has {field!r} among {', '.join(values)}")
    return corpora_of_groups(corpus, {corpus.name: documents})[0]


def split_at_random(corpus: Corpus, *, new: int, share: float, seed: int) -> list[Corpus]:
    """D0 and `new` corpora that hold `share` of the documents each (the paper: 90 % + 5 × 2 %)."""
    order = seeded_order([document.docid for document in corpus.documents], seed, "split")
    return _split(corpus, order, new=new, share=share)


def split_by_date(corpus: Corpus, field: str, *, new: int, share: float) -> list[Corpus]:
    """Split by date: the oldest documents are D0, the newest come last."""
    dates = {document.docid: _date(document, field) for document in corpus.documents}
    # The most recent come first, because `_split` takes the new corpora from the front.
    order = sorted(dates, key=lambda docid: (dates[docid], docid), reverse=True)
    return _split(corpus, order, new=new, share=share, last_first=True)


def split_by_value(corpus: Corpus, field: str) -> list[Corpus]:
    """Split by a metadata field: one corpus per value, in order of first appearance."""
    groups: dict[str, list[Document]] = {}
    for document in corpus.documents:
        groups.setdefault(str(_field(document, field)), []).append(document)
    if len(groups) < 2:
        raise PromptDSIError(f"every document has the same {field!r}, {next(iter(groups))!r}: nothing to split by")
    return corpora_of_groups(corpus, {f"d{number}": group for number, group in enumerate(groups.values())})


def _split(corpus: Corpus, order: list[str], *, new: int, share: float, last_first: bool = False) -> list[Corpus]:
    if new < 0 or not 0 < share < 1:
        raise UsageError(f"--new {new} --share {share}: the number may not be negative and the share lies between 0 and 1")
    size = round(share * len(order))
    if new and not size:
        raise UsageError(f"--share {share} of {len(order):,} documents is none; use a larger --share, or --new 0 to split nothing off")
    if new * size >= len(order):
        raise UsageError(f"--new {new} --share {share} takes {new * size:,} of {len(order):,} documents and leaves none for D0")
    chunks = [order[size * index : size * (index + 1)] for index in range(new)]
    if last_first:
        chunks.reverse()
    group_of = {docid: f"d{number}" for number, chunk in enumerate(chunks, 1) for docid in chunk}
    groups: dict[str, list[Document]] = {f"d{number}": [] for number in range(new + 1)}
    for document in corpus.documents:
        groups[group_of.get(document.docid, "d0")].append(document)
    return corpora_of_groups(corpus, groups)


def corpora_of_groups(corpus: Corpus, groups: dict[str, list[Document]]) -> list[Corpus]:
    """Make a corpus of each named group of documents, with its queries.

    A query whose documents fall into several groups goes to the latest of them; its judgements of earlier documents are
    left out, because a corpus refers to its own documents only.
    """
    group_of = {document.docid: number for number, group in enumerate(groups.values()) for document in group}
    latest: dict[str, int] = {}  # query id → the latest group with a relevant document
    for split in SPLITS:
        for judgement in corpus.qrels.get(split, ()):
            if judgement.docid in group_of and judgement.score > 0:
                latest[judgement.queryid] = max(latest.get(judgement.queryid, 0), group_of[judgement.docid])
    corpora = [Corpus(group, name=name) for name, group in groups.items()]
    for query in corpus.queries:
        if query.queryid in latest:
            corpora[latest[query.queryid]].queries.append(query)
    for split in SPLITS:
        for judgement in corpus.qrels.get(split, ()):
            number = group_of.get(judgement.docid, -1)
            if number >= 0 and latest.get(judgement.queryid) == number:
                corpora[number].qrels.setdefault(split, []).append(judgement)
    return corpora


def _field(document: Document, field: str) -> object:
    if field not in document.metadata:
        names = ", ".join(sorted(document.metadata)) or "none"
        raise PromptDSIError(f"document {document.docid!r} has no field {field!r}; its fields are: {names}")
    return document.metadata[field]


def _date(document: Document, field: str) -> datetime.datetime:
    """The value of a field as a date: an ISO date or time, or a year."""
    value = _field(document, field)
    text = str(value).strip()
    try:
        moment = datetime.datetime(int(text), 1, 1) if text.isdecimal() and len(text) == 4 else datetime.datetime.fromisoformat(text)
        return moment.astimezone(datetime.UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        raise PromptDSIError(f"document {document.docid!r}: {field!r} is {value!r}, expected a date like 2024-05-31 or a year") from None
