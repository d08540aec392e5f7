"""Corpus formats on disk. A new one is one file here with a NAME, `recognizes`, `read` and `write`; nothing else lists it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from promptdsi.corpus.corpus import Corpus, ReadNotes
from promptdsi.discovery import modules_of
from promptdsi.errors import DataError

__all__ = ["Format", "format_of", "formats"]


class Format(Protocol):
    """A module of this folder: one way to keep a corpus on disk."""

    NAME: str

    def recognizes(self, path: Path) -> bool:
        """Whether the path looks like this format, by name and kind of file."""

    def read(self, path: Path, notes: ReadNotes, *, max_unknown: int, splits: Sequence[str]) -> Corpus:
        """Read strictly; errors carry file and line. Files of other splits are not opened."""

    def write(self, corpus: Corpus, path: Path) -> None:
        """Write so that `read` gives an equal corpus, or raise ValueError for what this format cannot hold."""


def formats() -> dict[str, Format]:
    """Formats by name, in the order in which a path is tried; `folder` takes any folder with a text file, so it comes last."""
    modules = modules_of(sys.modules[__name__])
    return {name: cast("Format", modules[name]) for name in sorted(modules, key=lambda name: (name == "folder", name))}


def format_of(path: Path) -> Format:
    """The format of a path, or an error that names the known ones."""
    if not path.exists():
        raise DataError("does not exist", path=path)
    for candidate in formats().values():
        if candidate.recognizes(path):
            return candidate
    raise DataError(
        "is no corpus: expected a BEIR folder (with corpus.jsonl), a .jsonl or .tsv file (plain or .gz), or a folder of .txt or .md files",
        path=path,
    )
