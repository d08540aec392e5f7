"""Plain text."""

from __future__ import annotations

from promptdsi.corpus.decoding import decode_text
from promptdsi.corpus.extract import Extract

NAME = "text"
SUFFIXES = (".txt", ".text", ".log")


def extract(contents: bytes) -> Extract:
    text, notes = decode_text(contents)
    return Extract(text, notes=notes)
