"""A BEIR folder: corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv, each plain or .gz. The format we write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from promptdsi.corpus import reading
from promptdsi.corpus.corpus import SPLITS, Corpus, Judgement, ReadNotes, check_id
from promptdsi.corpus.reading import Line, decode, excerpt, parse_lines, plain_or_gz
from promptdsi.errors import DataError
from promptdsi.files import atomic_write

NAME = "beir"
HEADER = b"query-id\tcorpus-id\tscore\n"
HEADER_FIRST_COLUMNS = frozenset({"query-id", "query_id", "queryid", "qid", "query"})
NAMED = 5  # all unknown ids are counted, this many are named


def recognizes(path: Path) -> bool:
    return path.is_dir() and plain_or_gz(path / "corpus.jsonl") is not None


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    corpus_file = plain_or_gz(path / "corpus.jsonl")
    if corpus_file is None:
        raise DataError("holds no corpus.jsonl", path=path)
    documents = list(reading.documents(corpus_file, notes))
    queries_file = plain_or_gz(path / "queries.jsonl")
    queries = list(reading.queries(queries_file, notes)) if queries_file else []
    qrels: dict[str, list[Judgement]] = {}
    queryids, docids = {query.queryid for query in queries}, {document.docid for document in documents}
    for split in splits:
        if file := plain_or_gz(path / "qrels" / f"{split}.tsv"):
            judgements = _known_only(file, read_qrels(file, notes), queryids, docids, notes, max_unknown)
            if judgements:
                qrels[split] = judgements
    others = [file.name for file in (path / "qrels").glob("*") if file.name.split(".")[0] not in SPLITS]
    notes.count(f"files in qrels are no split we know and were not read ({', '.join(sorted(others)[:NAMED])})", len(others))
    queryids_by_split = {split: {judgement.queryid for judgement in judgements} for split, judgements in qrels.items()}
    notes.count("queries have no judgement and serve nothing", len(queryids.difference(*queryids_by_split.values())))
    for held_out in ("dev", "test"):
        shared = queryids_by_split.get("train", set()) & queryids_by_split.get(held_out, set())
        notes.count(f"queries are judged in train and in {held_out}: results on {held_out} will look too good", len(shared))
    return Corpus(documents, queries, qrels)


def write(corpus: Corpus, path: Path) -> None:
    """Write the folder; the documents come last, so a folder that has them is complete."""
    if recognizes(path):
        raise DataError("holds a corpus already; write to another folder", path=path)
    _check_consistent(corpus)
    for split in SPLITS:  # left by an interrupted write
        (path / "qrels" / f"{split}.tsv").unlink(missing_ok=True)
    for split, judgements in corpus.qrels.items():
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")
        if judgements:
            with atomic_write(path / "qrels" / f"{split}.tsv") as file:
                file.writelines([HEADER, *map(qrels_line, judgements)])
    if corpus.queries:
        with atomic_write(path / "queries.jsonl") as file:
            file.writelines(map(reading.query_line, corpus.queries))
    with atomic_write(path / "corpus.jsonl") as file:
        file.writelines(map(reading.document_line, corpus.documents))


def _check_consistent(corpus: Corpus) -> None:
    """Raise ValueError for a corpus that the reader would refuse."""
    docids = Counter(document.docid for document in corpus.documents)
    queryids = Counter(query.queryid for query in corpus.queries)
    for what, ids in (("docid", docids), ("query id", queryids)):
        if twice := [identifier for identifier, count in ids.items() if count > 1]:
            raise ValueError(f"{what} {twice[0]!r} stands twice")
    for judgement in chain.from_iterable(corpus.qrels.values()):
        if judgement.queryid not in queryids or judgement.docid not in docids:
            raise ValueError(f"a judgement names the unknown {judgement.queryid!r} or {judgement.docid!r}")


def qrels_line(judgement: Judgement) -> bytes:
    check_id(judgement.queryid, "query-id")
    check_id(judgement.docid, "corpus-id")
    return f"{judgement.queryid}\t{judgement.docid}\t{judgement.score}\n".encode()


def read_qrels(path: Path, notes: ReadNotes) -> dict[Judgement, int]:
    """Judgements with the line of their first mention. A header row is detected, not assumed."""
    scores: dict[tuple[str, str], int] = {}
    started = False

    def parse(line: Line) -> Judgement | None:
        nonlocal started
        first, started = not started, True
        values = decode(line, path).split("\t")
        # A first row that names its columns; a row that ends in a number is a judgement.
        head, last = values[0].strip().lower(), values[-1].strip().lower()
        if first and not last.lstrip("+-").isdecimal() and (head in HEADER_FIRST_COLUMNS or last == "score"):
            return None
        judgement = _judgement(values)
        earlier = scores.setdefault((judgement.queryid, judgement.docid), judgement.score)
        if earlier != judgement.score:
            raise ValueError(f"{judgement.queryid!r} and {judgement.docid!r} were judged {earlier} before, now {judgement.score}")
        return judgement

    judgements: dict[Judgement, int] = {}
    for number, judgement in parse_lines(path, notes, parse):
        if judgement is not None:
            notes.count("judgements repeated, kept once", judgement in judgements)
            judgements.setdefault(judgement, number)
    return judgements


def _judgement(values: list[str]) -> Judgement:
    if len(values) != 3:
        line = excerpt("\t".join(values))
        raise ValueError(f"{len(values)} tab-separated cells, expected query-id, corpus-id, score; the line is {line}")
    queryid, docid, score = values
    check_id(queryid, "query-id")
    check_id(docid, "corpus-id")
    if not (score.strip().lstrip("+-").isdecimal() and score.isascii()):
        raise ValueError(f"score {score!r} is not a whole number")
    return Judgement(queryid, docid, int(score))


def _known_only(
    path: Path,
    judgements: dict[Judgement, int],
    queryids: set[str],
    docids: set[str],
    notes: ReadNotes,
    max_unknown: int,
) -> list[Judgement]:
    unknown = {j: None for j in judgements if j.queryid not in queryids or j.docid not in docids}
    if len(unknown) > max_unknown and not notes.skip:
        first = next(iter(unknown))
        what = f"document {first.docid!r}" if first.docid not in docids else f"query {first.queryid!r}"
        names = ", ".join(excerpt(j.docid if j.docid not in docids else j.queryid) for j in list(unknown)[:NAMED])
        problem = f"judges the unknown {what}; {len(unknown):,} such rows ({names}{', …' if len(unknown) > NAMED else ''})"
        raise DataError(f"{problem}, {max_unknown:,} allowed (--max-unknown)", path=path, line=judgements[first])
    notes.count(f"judgements in {path.name} name unknown queries or documents and were left out", len(unknown))
    return [judgement for judgement in judgements if judgement not in unknown]
