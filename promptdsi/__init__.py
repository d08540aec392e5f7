"""A search index in the weights of a model, which learns new documents without reading the old ones again."""

from __future__ import annotations

import os

# Threads of torch wait for each other without spinning. By default they spin: on two cores one other busy process then makes training
# some eighty times slower, because a thread spins through the time slice that the thread it waits for needs. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from typing import TYPE_CHECKING, Any

from promptdsi.corpus import Corpus, Document, Judgement, Query
from promptdsi.errors import DataError, PromptDSIError, UsageError

if TYPE_CHECKING:
    from promptdsi.index.index import Index
    from promptdsi.index.results import Hit

__version__ = "0.1.0"
__all__ = ["Corpus", "DataError", "Document", "Hit", "Index", "Judgement", "PromptDSIError", "Query", "UsageError", "__version__"]


def __getattr__(name: str) -> Any:
    # The index imports numpy: imported on first use, so that reading data and --help stay fast.
    if name == "Index":
        from promptdsi.index.index import Index

        return Index
    if name == "Hit":
        from promptdsi.index.results import Hit

        return Hit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
