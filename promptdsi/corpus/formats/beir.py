"""A BEIR folder: corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv, each plain or .gz. The form the project writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from promptdsi.corpus.formats import jsonl
from promptdsi.corpus.formats.parts import Parts
from promptdsi.corpus.lines import decoded, excerpt, raw_lines
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import SPLITS, Judgement, Query, check_id
from promptdsi.errors import DataError
from promptdsi.files import atomic_write

HEADER = "query-id\tcorpus-id\tscore"
HEADER_FIRST_CELLS = frozenset({"query-id", "query_id", "queryid", "qid", "query"})
NAMED = 5  # unknown ids are all counted, this many are named


def recognises(path: Path) -> bool:
    return path.is_dir() and (either(path / "corpus.jsonl") is not None)


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Parts:
    corpus_file = either(path / "corpus.jsonl")
    if corpus_file is None:
        raise DataError("holds no corpus.jsonl", path=path)
    documents = list(jsonl.documents(corpus_file, notes))
    queries_file = either(path / "queries.jsonl")
    queries = list(jsonl.queries(queries_file, notes)) if queries_file else []
    qrels: dict[str, list[Judgement]] = {}
    known = ({query.queryid for query in queries}, {document.docid for document in documents})
    for split in splits:
        if file := either(path / "qrels" / f"{split}.tsv"):
            judgements = _known_only(file, read_qrels(file, notes), *known, notes, max_unknown)
            if judgements:
                qrels[split] = judgements
    others = [file.name for file in (path / "qrels").glob("*") if file.name.split(".")[0] not in SPLITS]
    notes.count(f"files in qrels are no split we know and were not read ({', '.join(sorted(others)[:NAMED])})", len(others))
    _remark_on_queries(queries, qrels, notes)
    return Parts(documents, queries, qrels)


def write(parts: Parts, path: Path) -> None:
    """Write the folder; the documents come last, so a folder that has them has everything."""
    if recognises(path):
        raise DataError("holds a corpus already; write to another folder", path=path)
    _check_consistent(parts)
    for split in SPLITS:  # left by a write that was cut off
        (path / "qrels" / f"{split}.tsv").unlink(missing_ok=True)
    for split, judgements in parts.qrels.items():
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")
        if judgements:
            write_qrels(judgements, path / "qrels" / f"{split}.tsv")
    if parts.queries:
        write_queries(parts.queries, path / "queries.jsonl")
    with atomic_write(path / "corpus.jsonl") as file:
        jsonl.write_documents(parts.documents, file)


def _check_consistent(parts: Parts) -> None:
    """What the reader would refuse is refused here."""
    docids = [document.docid for document in parts.documents]
    queryids = [query.queryid for query in parts.queries]
    for what, ids in (("docid", docids), ("query id", queryids)):
        if len(set(ids)) != len(ids):
            twice = next(one for one in ids if ids.count(one) > 1)
            raise ValueError(f"{what} {twice!r} stands twice")
    known_queries, known_docids = set(queryids), set(docids)
    for judgements in parts.qrels.values():
        for judgement in judgements:
            if judgement.queryid not in known_queries or judgement.docid not in known_docids:
                raise ValueError(f"a judgement names the unknown {judgement.queryid!r} or {judgement.docid!r}")


def write_queries(queries: Iterable[Query], path: Path) -> None:
    with atomic_write(path) as file:
        file.writelines(jsonl.query_line(query) for query in queries)


def write_qrels(judgements: Iterable[Judgement], path: Path) -> None:
    with atomic_write(path) as file:
        file.write(HEADER.encode() + b"\n")
        for judgement in judgements:
            check_id(judgement.queryid, "query-id")
            check_id(judgement.docid, "corpus-id")
            file.write(f"{judgement.queryid}\t{judgement.docid}\t{judgement.score}\n".encode())


def either(path: Path) -> Path | None:
    """The plain file or its .gz, whichever is there; both at once would be a guess."""
    packed = path.with_name(path.name + ".gz")
    if path.exists() and packed.exists():
        raise DataError(f"stands beside {packed.name}; keep one of the two", path=path)
    return path if path.exists() else packed if packed.exists() else None


def read_qrels(path: Path, notes: ReadNotes) -> list[tuple[int, Judgement]]:
    """Judgements with their line numbers. A header row is detected, not assumed."""
    found: list[tuple[int, Judgement]] = []
    seen: dict[tuple[str, str], int] = {}
    started = False
    for line in raw_lines(path):
        if not line.raw or line.raw.isspace():
            continue
        first, started = not started, True
        try:
            cells = decoded(line, path).split("\t")
            if first and _is_header(cells):
                continue
            judgement = _judgement(cells)
            earlier = seen.setdefault((judgement.queryid, judgement.docid), judgement.score)
            if earlier != judgement.score:
                raise ValueError(f"{judgement.queryid!r} and {judgement.docid!r} were judged {earlier} before, now {judgement.score}")
        except (ValueError, DataError) as error:
            notes.refuse(error if isinstance(error, DataError) else DataError(str(error), path=path, line=line.number))
            continue
        found.append((line.number, judgement))
    if len(found) > len(seen):
        notes.count("judgements repeated, kept once", len(found) - len(seen))
    return list({(judgement.queryid, judgement.docid): (number, judgement) for number, judgement in reversed(found)}.values())[::-1]


def _is_header(cells: list[str]) -> bool:
    """A first row that names its columns; a row that ends in a number is a judgement whatever it begins with."""
    first, last = cells[0].strip().lower(), cells[-1].strip().lower()
    return not last.lstrip("+-").isdecimal() and (first in HEADER_FIRST_CELLS or last == "score")


def _judgement(cells: list[str]) -> Judgement:
    if len(cells) != 3:
        shown = excerpt("\t".join(cells))
        raise ValueError(f"{len(cells)} tab-separated cells, expected query-id, corpus-id, score; the line is {shown}")
    check_id(cells[0], "query-id")
    check_id(cells[1], "corpus-id")
    if not (cells[2].strip().lstrip("+-").isdecimal() and cells[2].isascii()):
        raise ValueError(f"score {cells[2]!r} is not a whole number")
    return Judgement(cells[0], cells[1], int(cells[2]))


def _known_only(
    path: Path,
    judgements: list[tuple[int, Judgement]],
    queryids: set[str],
    docids: set[str],
    notes: ReadNotes,
    max_unknown: int,
) -> list[Judgement]:
    unknown = [(n, j) for n, j in judgements if j.queryid not in queryids or j.docid not in docids]
    if len(unknown) > max_unknown and not notes.skip:
        number, first = unknown[0]
        what = f"document {first.docid!r}" if first.docid not in docids else f"query {first.queryid!r}"
        names = ", ".join(excerpt(j.docid if j.docid not in docids else j.queryid) for _, j in unknown[:NAMED])
        problem = f"judges the unknown {what}; {len(unknown):,} such rows ({names}{', …' if len(unknown) > NAMED else ''})"
        raise DataError(f"{problem}, {max_unknown:,} allowed (--max-unknown)", path=path, line=number)
    notes.count(f"judgements in {path.name} name unknown queries or documents and were left out", len(unknown))
    left_out = {number for number, _ in unknown}
    return [judgement for number, judgement in judgements if number not in left_out]


def _remark_on_queries(queries: list[Query], qrels: dict[str, list[Judgement]], notes: ReadNotes) -> None:
    splits = {split: {judgement.queryid for judgement in judgements} for split, judgements in qrels.items()}
    query_ranks = set().union(*splits.values()) if splits else set()
    notes.count("queries have no judgement and serve nothing", sum(query.queryid not in query_ranks for query in queries))
    for held_out in ("dev", "test"):
        shared = splits.get("train", set()) & splits.get(held_out, set())
        notes.count(f"queries are judged in train and in {held_out}: results on {held_out} will look too good", len(shared))
