"""Documents and queries: records, strict readers and writers, streams, sources, pseudo-queries."""

from __future__ import annotations

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Pair, Query, ReadNotes

__all__ = ["Corpus", "Document", "Judgement", "Pair", "Query", "ReadNotes"]
