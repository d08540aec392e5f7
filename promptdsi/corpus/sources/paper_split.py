"""The split of the paper's two data sets, NQ320k and MSMARCO 300k: 90 % old, 9 % new, 1 % tune documents.

D0 = old; D1..D5 = consecutive chunks of the new list; the tune documents serve IncDSI's hyper-parameter search only.
Train queries are split 80/20 into train and dev, separately over all old, all new and all tune documents; the official
dev queries are the test queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from promptdsi.corpus.corpus import Corpus, ReadNotes, merge_corpora
from promptdsi.corpus.reading import Line, Parsed, parse_lines
from promptdsi.corpus.sources import MALFORMED, Request, SourceData, malformed_lines
from promptdsi.corpus.splitting import corpora_of_groups, seeded_order
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


def raw_records(path: Path, request: Request, parse: Callable[[Line], Parsed]) -> Iterator[Parsed]:
    """The records of a raw file. Malformed lines are skipped and counted, unless `on_error` says to stop.

    A file without a single good line is not the file we expect: its first error is raised.
    """
    if request.on_error is not None:
        yield from (record for _, record in parse_lines(path, request.notes, parse))
        return
    good, notes = 0, ReadNotes(skip=True)
    for _, record in parse_lines(path, notes, parse):
        good += 1
        yield record
    if notes.skipped and not good:
        raise notes.skipped[0]
    if notes.skipped:
        request.notes.count(MALFORMED, len(notes.skipped))
        request.notes.remark(f"the first malformed line of {path.name}: {notes.skipped[0]}")


def paper_data(data: SourceData, request: Request, *, max_new: int | None = None, max_tune: int | None = None) -> SourceData:
    """Split a source as in the paper. Its official train queries are judged in `train`, its official dev queries in `test`;
    documents without a query are left out."""
    name = data.corpus.name
    relevant = {judgement.docid for judgements in data.corpus.qrels.values() for judgement in judgements}
    by_id = {document.docid: document for document in data.corpus.documents if document.docid in relevant}
    if len(by_id) < MIN_DOCUMENTS:
        raise PromptDSIError(f"{name}: only {len(by_id)} documents have a query, at least {MIN_DOCUMENTS} are needed")
    order = seeded_order(list(by_id), request.seed, name)
    old_size, new_size = round(0.9 * len(order)), round(0.09 * len(order))
    old, new, tune = order[:old_size], order[old_size : old_size + new_size], order[old_size + new_size :]
    new, tune = new[:max_new], tune[:max_tune]
    chunks = [new[start : start + request.chunk] for start in range(0, len(new), request.chunk)][:NEW_CORPORA]
    # A query goes to the latest of its documents' corpora; tune documents count as the earliest.
    parts = {"tune": tune} | {f"d{number}": docids for number, docids in enumerate([old, *chunks])}
    held_out, *corpora = corpora_of_groups(data.corpus, {part: [by_id[docid] for docid in docids] for part, docids in parts.items()})
    for part in (corpora[:1], corpora[1:], [held_out]):
        _hold_out_dev(part, request.seed)
    sizes = {"chunk": request.chunk, "max_new": max_new, "max_tune": max_tune, "max_words": request.max_words}
    rule = {"rule": "90/9/1", "seed": request.seed, **sizes, **malformed_lines(request.notes)}
    stream = Stream(name, corpora, rule, data.origin, data.licence, [held_out])
    return data._replace(corpus=merge_corpora([*corpora, held_out], name), default_stream=stream)


def _hold_out_dev(corpora: Sequence[Corpus], seed: int) -> None:
    """Move the judgements of exactly 20 % of the train queries to dev."""
    queryids = dict.fromkeys(judgement.queryid for corpus in corpora for judgement in corpus.qrels.get("train", ()))
    order = seeded_order(list(queryids), seed, "train-dev")
    dev = set(order[round(0.8 * len(order)) :])
    for corpus in corpora:
        train = corpus.qrels.pop("train", [])
        corpus.qrels["train"] = [judgement for judgement in train if judgement.queryid not in dev]
        corpus.qrels["dev"] = [judgement for judgement in train if judgement.queryid in dev]
