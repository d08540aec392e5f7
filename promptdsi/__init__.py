"""A search index that lives in a model's weights and learns new documents without seeing the old ones again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from promptdsi.corpus import Corpus, Document, Judgement, Query
from promptdsi.errors import DataError, PromptDSIError

if TYPE_CHECKING:
    from promptdsi.index.index import Index

__version__ = "0.1.0"
__all__ = ["Corpus", "DataError", "Document", "Index", "Judgement", "PromptDSIError", "Query", "__version__"]


def __getattr__(name: str) -> Any:
    # The index brings numpy with it: imported when first asked for, so that reading data and --help stay light.
    if name == "Index":
        from promptdsi.index.index import Index

        return Index
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
