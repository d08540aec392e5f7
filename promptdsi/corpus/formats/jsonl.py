"""JSON Lines: one document per line, plain or .gz."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from promptdsi.corpus.corpus import SPLITS, Corpus, ReadNotes
from promptdsi.corpus.reading import document_line, documents, write_bytes

NAME = "jsonl"


def recognizes(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    return Corpus(list(documents(path, notes)))


def write(corpus: Corpus, path: Path) -> None:
    if corpus.queries or corpus.qrels:
        raise ValueError("a lone JSONL file holds documents only; write a BEIR folder to keep the queries")
    write_bytes(path, b"".join(map(document_line, corpus.documents)))
