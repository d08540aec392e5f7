"""Methods: retrieval systems behind one contract. A new one is a file in this folder; nothing else lists it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from promptdsi.discovery import import_all

if TYPE_CHECKING:
    from promptdsi.methods.base import Method


def methods() -> dict[str, type[Method]]:
    """Every method of this folder, by name."""
    from promptdsi.methods.base import Method

    kinds: dict[str, type[Method]] = {}
    for module in import_all(sys.modules[__name__]):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Method) and "name" in vars(kind):
                kinds[kind.name] = kind
    return dict(sorted(kinds.items()))
