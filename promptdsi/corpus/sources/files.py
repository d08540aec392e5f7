"""The user's own documents: any path `Corpus.read` understands."""

from __future__ import annotations

from pathlib import Path

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.sources.source import Material, Request

NAME = "files"


def build(request: Request) -> Material:
    path = Path(request.name)
    corpus = Corpus.read(path, on_error=request.on_error, max_unknown=request.max_unknown, notes=request.notes)
    # The name, not the path: a stream must not depend on where its source stood.
    return Material(corpus, origin=f"the corpus {path.name}", licence="as the source's")
