"""NQ320k from the official Natural Questions files that the user points at (simplified train, dev simplified or whole).

A document is a Wikipedia page, made unique by its normalised title; its text is the page's tokens without markup, cut at
`--max-words` words (0 keeps all). The published id lists are not available: the split is ours, by rule and seed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from promptdsi.corpus.formats import jsonl
from promptdsi.corpus.lines import raw_lines
from promptdsi.corpus.records import Document, Query, check_document, check_query
from promptdsi.corpus.sources.papers import Construction, Labelled, cut, paper_stream, whole
from promptdsi.corpus.sources.source import Material, Request
from promptdsi.errors import DataError, UsageError

NAME = "nq320k"
ORIGIN = "Natural Questions, official train and dev files given by the user"
LICENCE = "CC BY-SA 3.0"
MARKUP = re.compile(r"^</?[A-Za-z][^<>]*>$")


def build(request: Request) -> Material:
    if request.raw is None:
        raise UsageError("nq320k is built from the official files: --raw FOLDER with the train and dev files (.jsonl or .jsonl.gz)")
    files = _raw_files(request.raw)
    documents: dict[str, Document] = {}
    labelled: list[Labelled] = []
    with request.progress("reading Natural Questions", unit="examples") as advance:
        for path, official_dev in files:
            for document, query in _examples(path, request):
                documents.setdefault(document.docid, document)
                labelled.append(Labelled(query, document.docid, official_dev))
                advance(1)
    how = Construction(NAME, ORIGIN, LICENCE, seed=request.seed, chunk=request.chunk, max_words=request.max_words)
    stream = paper_stream(list(documents.values()), labelled, how)
    return Material(whole(stream), ORIGIN, LICENCE, own_stream=stream)


def _raw_files(folder: Path) -> list[tuple[Path, bool]]:
    """Train files first, then dev files, by the word in their names."""
    files = sorted(path for path in folder.glob("*") if path.name.endswith((".jsonl", ".jsonl.gz")))
    train = [(path, False) for path in files if "train" in path.name]
    dev = [(path, True) for path in files if "dev" in path.name and "train" not in path.name]
    if not train or not dev:
        raise DataError("needs at least one *train*.jsonl[.gz] and one *dev*.jsonl[.gz] of Natural Questions", path=folder)
    return train + dev


def _examples(path: Path, request: Request) -> Iterator[tuple[Document, Query]]:
    for line in raw_lines(path):
        if line.raw.strip():
            try:
                record = jsonl.parsed(line, path)
                title = title_of(record)
                # Half the examples share a page: its text is cut out each time, but that is cheap next to parsing the line.
                document = Document(normalised(title), cut(page_words(record), request.max_words, request.notes), title)
                query = Query(f"nq-{record['example_id']}", " ".join(str(record["question_text"]).split()))
                check_document(document)
                check_query(query)
            except (KeyError, TypeError, ValueError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                request.notes.refuse(DataError(f"not a Natural Questions example: {reason}", path=path, line=line.number))
                continue
            except DataError as error:
                request.notes.refuse(error)
                continue
            yield document, query


def title_of(record: dict[str, Any]) -> str:
    """The page's title: given in the whole format, part of the address in the simplified one."""
    if title := record.get("document_title"):
        return " ".join(str(title).replace("_", " ").split())
    address = urlsplit(str(record["document_url"]).replace("&amp;", "&"))
    named = parse_qs(address.query).get("title") or [unquote(address.path.rsplit("/", 1)[-1])]
    return " ".join(named[0].replace("_", " ").split())


def normalised(title: str) -> str:
    """The key that makes pages unique.

    Examples
    --------
    >>> normalised("The  Beatles")
    'the beatles'
    """
    return " ".join(unicodedata.normalize("NFKC", title).casefold().split())


def page_words(record: dict[str, Any]) -> list[str]:
    """The page's words without markup, from either official format."""
    if "document_tokens" in record:
        return [str(token["token"]) for token in record["document_tokens"] if not token["html_token"]]
    return [token for token in str(record["document_text"]).split() if not MARKUP.match(token)]
