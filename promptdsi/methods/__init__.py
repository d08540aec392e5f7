"""Methods: retrieval systems behind one contract. A new one is a file in this folder; nothing else lists it."""

from __future__ import annotations

from promptdsi.methods.base import methods

__all__ = ["methods"]
