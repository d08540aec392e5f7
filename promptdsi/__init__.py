"""A search index that lives in a model's weights and learns new documents without seeing the old ones again."""

from __future__ import annotations

from promptdsi.corpus import Corpus, Document, Judgement, Query
from promptdsi.errors import DataError, PromptDSIError

__version__ = "0.1.0"
__all__ = ["Corpus", "DataError", "Document", "Judgement", "PromptDSIError", "Query", "__version__"]
