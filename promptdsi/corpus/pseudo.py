"""Add pseudo-queries to a corpus: generate, remember each document's queries at once, then write them into the corpus.

What a generator wrote for a document is kept in the corpus's own `.promptdsi/` folder, keyed by the generator's settings and
the document's content, so an interrupted run goes on where it stopped and an unchanged document is never done twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from promptdsi.corpus.corpus import Corpus, Pair
from promptdsi.corpus.formats import beir, jsonl
from promptdsi.corpus.generators.generator import Generator, tidy
from promptdsi.corpus.lines import open_bytes
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import Document, Judgement, Query
from promptdsi.corpus.streams import CACHE_FOLDER
from promptdsi.errors import DataError
from promptdsi.files import atomic_write
from promptdsi.progress import Progress, silent


class Written(NamedTuple):
    """What a run added to a corpus; `without` lists the documents for which the generator gave nothing."""

    pairs: list[Pair]
    generated_now: int
    without: list[str]


class QueryCache:
    """Queries per document content, one JSON line each, appended as they are made."""

    def __init__(self, folder: Path, generator: Generator) -> None:
        key = json.dumps(generator.key(), sort_keys=True)
        self.path = folder / "queries" / f"{generator.NAME}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsonl"
        self.known: dict[str, list[str]] = {}
        if self.path.exists():
            self._load()

    def _load(self) -> None:
        whole = 0
        for raw in self.path.read_bytes().splitlines(keepends=True):
            try:
                entry = json.loads(raw)
                self.known[entry["content"]] = list(entry["queries"])
            except (ValueError, KeyError, TypeError):
                break  # a line cut off by a kill; what follows it cannot be trusted
            if not raw.endswith(b"\n"):
                break
            whole += len(raw)
        with self.path.open("r+b") as file:
            file.truncate(whole)

    def add(self, entries: Iterable[tuple[str, list[str]]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            for content, queries in entries:
                self.known[content] = queries
                file.write(json.dumps({"content": content, "queries": queries}, ensure_ascii=False).encode("utf-8") + b"\n")


def content_hash(document: Document) -> str:
    return hashlib.sha256(f"{document.title}\0{document.text}".encode()).hexdigest()


def generate_queries(corpus: Corpus, generator: Generator, cache: QueryCache, *, progress: Progress = silent) -> Written:
    """Pseudo-queries for every document of a corpus, taken from the cache where it has them."""
    missing = {content_hash(document): document for document in corpus.documents}
    missing = {content: document for content, document in missing.items() if content not in cache.known}
    contents = list(missing)
    with progress(f"writing queries with {generator.NAME}", total=len(contents), unit="documents") as advance:
        for start in range(0, len(contents), generator.batch_size):
            batch = contents[start : start + generator.batch_size]
            made = generator.generate([missing[content] for content in batch])
            cache.add((content, tidy(queries, generator.per_document)) for content, queries in zip(batch, made, strict=True))
            advance(len(batch))
    pairs, without = [], []
    for document in corpus.documents:
        texts = cache.known[content_hash(document)]
        pairs += [Pair(Query(queryid(document.docid, text), text, "pseudo"), document.docid) for text in texts]
        if not texts:
            without.append(document.docid)
    return Written(pairs, len(contents), without)


def queryid(docid: str, text: str) -> str:
    """A stable id, so that the same query is never added twice."""
    return "pq-" + hashlib.sha256(f"{docid}\0{text}".encode()).hexdigest()[:20]


def add_queries(
    folder: Path,
    generator: Generator,
    *,
    on_error: str = "stop",
    max_unknown: int = 0,
    notes: ReadNotes | None = None,
    progress: Progress = silent,
) -> Written:
    """Append pseudo-queries to a BEIR folder: queries.jsonl (kind pseudo) and qrels/train.tsv, each replaced atomically.

    Pairs that are there already are left alone, so the command may be run again after any interruption; what is returned
    are the pairs added now.
    """
    if not beir.recognises(folder):
        raise DataError("is no BEIR folder, so queries cannot be added to it; give -o FOLDER to write one", path=folder)
    with alone(folder / CACHE_FOLDER):
        return _add_queries(folder, Corpus.read(folder, on_error=on_error, max_unknown=max_unknown, notes=notes), generator, progress)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One writer at a time, by a kernel lock that dies with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError("another process is adding queries to this corpus; wait for it", path=folder.parent) from None
        yield


def _add_queries(folder: Path, corpus: Corpus, generator: Generator, progress: Progress) -> Written:
    written = generate_queries(corpus, generator, QueryCache(folder / CACHE_FOLDER, generator), progress=progress)
    asked = {query.queryid for query in corpus.queries}
    query_ranks = {(judgement.queryid, judgement.docid) for judgement in corpus.qrels.get("train", ())}
    new_queries = [pair.query for pair in written.pairs if pair.query.queryid not in asked]
    new_pairs = [pair for pair in written.pairs if (pair.query.queryid, pair.docid) not in query_ranks]
    # Queries first: stopped in between, a query without judgement harms nothing and the next run completes it.
    if new_queries:
        _append(folder / "queries.jsonl", [jsonl.query_line(query) for query in new_queries])
    if new_pairs:
        rows = [f"{pair.query.queryid}\t{pair.docid}\t1\n".encode() for pair in new_pairs]
        _append(folder / "qrels" / "train.tsv", rows, header=beir.HEADER.encode() + b"\n")
    return written._replace(pairs=new_pairs)


def with_queries(corpus: Corpus, written: Written) -> Corpus:
    """The corpus with the pseudo-queries among its train queries, those it has already left as they are."""
    here = {query.queryid for query in corpus.queries}
    written = written._replace(pairs=[pair for pair in written.pairs if pair.query.queryid not in here])
    train = [*corpus.qrels.get("train", ()), *(Judgement(pair.query.queryid, pair.docid) for pair in written.pairs)]
    return Corpus(
        corpus.documents, [*corpus.queries, *(pair.query for pair in written.pairs)], corpus.qrels | {"train": train}, name=corpus.name
    )


def _append(path: Path, lines: list[bytes], *, header: bytes = b"") -> None:
    """Write old content and new lines as one new file, in the form (plain or .gz) in which the old one stands."""
    found = beir.either(path)
    old = header
    if found is not None:
        with open_bytes(found) as file:
            old = file.read()
        old += b"" if old.endswith(b"\n") or not old else b"\n"
    content = old + b"".join(lines)
    target = found or path
    with atomic_write(target) as file:
        file.write(gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
