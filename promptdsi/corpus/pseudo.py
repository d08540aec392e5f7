"""Add pseudo-queries to a corpus: generate them, cache each document's queries at once, then write them into the corpus.

The cache is the corpus's own `.promptdsi/` folder, keyed by the generator's options and the document's content, so an
interrupted run resumes and no document is processed twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from promptdsi.corpus import reading
from promptdsi.corpus.corpus import Corpus, Document, Judgement, Pair, Query, ReadNotes
from promptdsi.corpus.formats import beir
from promptdsi.corpus.generators import Generator, unique_queries
from promptdsi.corpus.streams import CACHE_FOLDER
from promptdsi.errors import DataError
from promptdsi.progress import Progress, silent


class GeneratedQueries(NamedTuple):
    """Pseudo-queries that a corpus does not have yet; `without` lists the documents for which the generator gave none."""

    pairs: list[Pair]
    generated_now: int
    without: list[str]


class QueryCache:
    """Queries by document content, one JSON line each, appended as they are generated."""

    def __init__(self, folder: Path, generator: Generator) -> None:
        key = json.dumps(generator.key(), sort_keys=True)
        self.path = folder / "queries" / f"{generator.NAME}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsonl"
        self.queries: dict[str, list[str]] = {}
        if not self.path.exists():
            return
        valid = 0
        with self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # streams that are built side by side share a cache
            for raw in file:  # one by one: fifteen queries of 300,000 documents are half a gigabyte
                try:
                    entry = json.loads(raw)
                    self.queries[entry["content"]] = list(entry["queries"])
                except (ValueError, KeyError, TypeError):
                    break  # a line truncated by a kill; nothing after it is valid
                if not raw.endswith(b"\n"):
                    break
                valid += len(raw)
            file.truncate(valid)

    def add(self, entries: Iterable[tuple[str, list[str]]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for content, queries in entries:
                self.queries[content] = queries
                file.write(json.dumps({"content": content, "queries": queries}, ensure_ascii=False).encode("utf-8") + b"\n")


def content_hash(document: Document) -> str:
    return hashlib.sha256(f"{document.title}\0{document.text}".encode()).hexdigest()


def generate_queries(corpus: Corpus, generator: Generator, cache: QueryCache, *, progress: Progress = silent) -> GeneratedQueries:
    """Pseudo-queries for every document of a corpus, from the cache where it has them."""
    missing = {content_hash(document): document for document in corpus.documents}
    missing = {content: document for content, document in missing.items() if content not in cache.queries}
    contents = list(missing)
    with progress(f"writing queries with {generator.NAME}", total=len(contents), unit="documents") as advance:
        at_once = generator.documents_at_once() if contents else 1
        for start in range(0, len(contents), at_once):
            batch = contents[start : start + at_once]
            texts = generator.generate([missing[content] for content in batch])
            cache.add((content, unique_queries(queries, generator.per_document)) for content, queries in zip(batch, texts, strict=True))
            advance(len(batch))
    queries = {document.docid: cache.queries[content_hash(document)] for document in corpus.documents}
    pairs = [Pair(Query(queryid(docid, text), text, "pseudo"), docid) for docid, texts in queries.items() for text in texts]
    existing = {(judgement.queryid, judgement.docid) for judgement in corpus.qrels.get("train", ())}
    new = [pair for pair in pairs if (pair.query.queryid, pair.docid) not in existing]
    return GeneratedQueries(new, len(contents), [docid for docid, texts in queries.items() if not texts])


def queryid(docid: str, text: str) -> str:
    """A stable id, so that the same query is never added twice."""
    return "pq-" + hashlib.sha256(f"{docid}\0{text}".encode()).hexdigest()[:20]


def add_queries(
    folder: Path,
    generator: Generator,
    *,
    on_error: str | None = None,
    follow_links: bool = False,
    max_unknown: int = 0,
    notes: ReadNotes | None = None,
    progress: Progress = silent,
) -> GeneratedQueries:
    """Append pseudo-queries to a BEIR folder: queries.jsonl (kind pseudo) and qrels/train.tsv, each replaced atomically.

    Existing pairs stay as they are, so the command may be run again after any interruption. Returns the pairs added now.
    """
    if not beir.recognizes(folder):
        raise DataError("is no BEIR folder, so queries cannot be added to it; give -o FOLDER to write one", path=folder)
    with exclusive_lock(folder / CACHE_FOLDER):
        corpus = Corpus.read(folder, on_error=on_error, follow_links=follow_links, max_unknown=max_unknown, notes=notes)
        generated = generate_queries(corpus, generator, QueryCache(folder / CACHE_FOLDER, generator), progress=progress)
        extended = with_queries(corpus, generated)
        # Queries first: after an interruption in between, a query without judgement does no harm and the next run completes it.
        _append(folder / "queries.jsonl", map(reading.query_line, extended.queries[len(corpus.queries) :]))
        judgements = extended.qrels["train"][len(corpus.qrels.get("train", ())) :]
        _append(folder / "qrels" / "train.tsv", map(beir.qrels_line, judgements), header=beir.HEADER)
        return generated


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Allow one writer at a time, by a kernel lock that ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError("another process is adding queries to this corpus; wait for it", path=folder.parent) from None
        yield


def with_queries(corpus: Corpus, generated: GeneratedQueries) -> Corpus:
    """The corpus with the new pseudo-queries after its train queries. A query may be there without its judgement (an interruption)."""
    queryids = {query.queryid for query in corpus.queries}
    queries = [*corpus.queries, *(pair.query for pair in generated.pairs if pair.query.queryid not in queryids)]
    train = [*corpus.qrels.get("train", ()), *(Judgement(pair.query.queryid, pair.docid) for pair in generated.pairs)]
    return Corpus(corpus.documents, queries, corpus.qrels | {"train": train}, name=corpus.name)


def _append(path: Path, lines: Iterable[bytes], *, header: bytes = b"") -> None:
    """Replace the file (plain or .gz) by its old content followed by new lines."""
    if not (added := b"".join(lines)):
        return
    content = header
    if existing := reading.plain_or_gz(path):
        with reading.open_bytes(existing) as file:
            content = file.read()
        content += b"" if content.endswith(b"\n") or not content else b"\n"
    reading.write_bytes(existing or path, content + added)
