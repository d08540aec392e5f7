"""JSON Lines: one document per line, plain or .gz."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from promptdsi.corpus.corpus import SPLITS, Corpus, ReadNotes
from promptdsi.corpus.reading import document_line, documents
from promptdsi.files import atomic_write

NAME = "jsonl"


def recognizes(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    return Corpus(list(documents(path, notes)))


def write(corpus: Corpus, path: Path) -> None:
    if corpus.queries or corpus.qrels:
        raise ValueError("a lone JSONL file holds documents only; write a BEIR folder to keep the queries")
    lines = b"".join(map(document_line, corpus.documents))
    with atomic_write(path) as file:
        file.write(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)
