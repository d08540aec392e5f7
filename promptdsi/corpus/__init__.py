"""Documents and queries: records, strict readers and writers, streams, sources, pseudo-queries."""

from __future__ import annotations

from promptdsi.corpus.corpus import Corpus, Pair
from promptdsi.corpus.reading import ReadNotes
from promptdsi.corpus.records import Document, Judgement, Query

__all__ = ["Corpus", "Document", "Judgement", "Pair", "Query", "ReadNotes"]
