"""NQ320k from the official Natural Questions files that the user points at (simplified train, dev simplified or whole).

A document is a Wikipedia page, unique by its normalized title; its text is the page's tokens without markup, at most
`--max-words` of them (0 keeps all). The authors' id lists are not available, so the split follows our seed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from promptdsi.corpus import reading
from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query, check_document, check_query
from promptdsi.corpus.reading import Line
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.corpus.sources.paper_split import paper_data, raw_records, truncate_words
from promptdsi.errors import DataError, UsageError

NAME = "nq320k"
ORIGIN = "Natural Questions, official train and dev files given by the user"
LICENCE = "CC BY-SA 3.0"
MARKUP = re.compile(r"^</?[A-Za-z][^<>]*>$")


def build(request: Request) -> SourceData:
    files = check(request)
    documents: dict[str, Document] = {}
    queries: dict[str, Query] = {}
    qrels: dict[str, dict[Judgement, None]] = {"train": {}, "test": {}}  # judgements in order, each once
    with request.progress("reading Natural Questions", unit="examples") as advance:
        for path, split in files:
            for document, query in _examples(path, request):
                documents.setdefault(document.docid, document)
                queries[query.queryid] = query
                qrels[split][Judgement(query.queryid, document.docid)] = None
                advance(1)
    corpus = Corpus(list(documents.values()), list(queries.values()), {split: list(rows) for split, rows in qrels.items()}, name=NAME)
    return paper_data(SourceData(corpus, ORIGIN, LICENCE), request)


def check(request: Request) -> list[tuple[Path, str]]:
    """The raw files and their splits, train files first, by the word in their names; the official dev queries are the test queries."""
    if (folder := request.raw) is None:
        raise UsageError("nq320k is built from the official files: --raw FOLDER with the train and dev files (.jsonl or .jsonl.gz)")
    files = sorted(path for path in folder.glob("*") if path.name.endswith((".jsonl", ".jsonl.gz")))
    train = [(path, "train") for path in files if "train" in path.name]
    dev = [(path, "test") for path in files if "dev" in path.name and "train" not in path.name]
    if not train or not dev:
        raise DataError("needs at least one *train*.jsonl[.gz] and one *dev*.jsonl[.gz] of Natural Questions", path=folder)
    return train + dev


def _examples(path: Path, request: Request) -> Iterator[tuple[Document, Query]]:
    def parse(line: Line) -> tuple[Document, Query]:
        record = reading.parse_json(line, path)
        try:
            title = title_of(record)
            text = truncate_words(page_words(record), request.max_words, request.notes)
            query = Query(f"nq-{record['example_id']}", " ".join(str(record["question_text"]).split()))
            document = Document(normalize_title(title), text, title)
            check_document(document)
            check_query(query)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"not a Natural Questions example: {reason}") from None
        return document, query

    return raw_records(path, request, parse)


def title_of(record: dict[str, Any]) -> str:
    """The page's title: given in the whole format, part of the address in the simplified one."""
    if title := record.get("document_title"):
        return " ".join(str(title).replace("_", " ").split())
    address = urlsplit(str(record["document_url"]).replace("&amp;", "&"))
    named = parse_qs(address.query).get("title") or [unquote(address.path.rsplit("/", 1)[-1])]
    return " ".join(named[0].replace("_", " ").split())


def normalize_title(title: str) -> str:
    """The docid of a page: its title, normalized.

    Examples
    --------
    >>> normalize_title("The  Beatles")
    'the beatles'
    """
    return " ".join(unicodedata.normalize("NFKC", title).casefold().split())


def page_words(record: dict[str, Any]) -> list[str]:
    """The page's words without markup, from either official format."""
    if "document_tokens" in record:
        return [str(token["token"]) for token in record["document_tokens"] if not token["html_token"]]
    return [token for token in str(record["document_text"]).split() if not MARKUP.match(token)]
