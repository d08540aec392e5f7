"""Tables of comma-separated values: a paragraph for each row, in which every value stands beside the name of its column."""

from __future__ import annotations

import csv
import io
from itertools import zip_longest

from promptdsi.corpus.decoding import decode_text
from promptdsi.corpus.extract import Extract

NAME = "table"
SUFFIXES = (".csv",)
SAMPLE = 1 << 13  # the time to tell the delimiter grows with its square


def extract(contents: bytes) -> Extract:
    text, notes = decode_text(contents)
    try:
        delimiter = csv.Sniffer().sniff(text[:SAMPLE], delimiters=",;\t|").delimiter  # its guesses about quotes are not to be relied on
    except csv.Error:
        delimiter = ","
    csv.field_size_limit(len(text) + 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows = [row for row in reader if any(value.strip() for value in row)]
    if len(rows) < 2:
        return Extract(text, notes=notes)
    names, *values = rows
    paragraphs = ("\n".join(_line(name, value) for name, value in zip_longest(names, row, fillvalue="") if value.strip()) for row in values)
    return Extract("\n\n".join(paragraphs), notes=notes)


def _line(name: str, value: str) -> str:
    return f"{name}: {value}" if name else value
