"""Corpus formats on disk. A new one is one file here, and nothing else lists it. It has a NAME and

recognizes(path) -> bool                                    by name and kind of file
read(path, notes, *, max_unknown, splits) -> Corpus         strictly: errors carry file and line; files of other splits are not opened
write(corpus, path)                                         so that `read` gives an equal corpus; ValueError for what it cannot hold
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from promptdsi.discovery import modules_of
from promptdsi.errors import DataError


def formats() -> dict[str, ModuleType]:
    """Formats by name, in the order in which a path is tried; `folder` takes any folder with a text file, so it comes last."""
    return dict(sorted(modules_of(sys.modules[__name__]).items(), key=lambda item: item[0] == "folder"))


def format_of(path: Path) -> ModuleType:
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
