"""The ways a corpus stands on disk, in the order in which a path is tried."""

from __future__ import annotations

from pathlib import Path

from promptdsi.corpus.formats import beir, folder, jsonl, pairs
from promptdsi.corpus.formats.parts import Format, Parts
from promptdsi.errors import DataError

FORMATS: dict[str, Format] = {"beir": beir, "jsonl": jsonl, "pairs": pairs, "folder": folder}

__all__ = ["FORMATS", "Format", "Parts", "format_of"]


def format_of(path: Path) -> Format:
    """The format a path is in, or an error that names the ones we read."""
    if not path.exists():
        raise DataError("does not exist", path=path)
    for candidate in FORMATS.values():
        if candidate.recognises(path):
            return candidate
    raise DataError(
        "is no corpus: expected a BEIR folder (with corpus.jsonl), a .jsonl or .tsv file (plain or .gz), or a folder of .txt or .md files",
        path=path,
    )
