"""Pseudo-query generators by name. A new one is one file here with a subclass of `Generator`; nothing else lists it."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from promptdsi.corpus.generators.generator import Generator
from promptdsi.discovery import import_all
from promptdsi.errors import UsageError

__all__ = ["Generator", "generators", "make_generator"]


def generators() -> dict[str, type[Generator]]:
    """The generators there are. Importing them is cheap: each loads its model's libraries when it first generates."""
    import_all(sys.modules[__name__])
    return {kind.NAME: kind for kind in sorted(Generator.__subclasses__(), key=lambda kind: kind.NAME)}


def make_generator(name: str, **keywords: Any) -> Generator:
    """A generator by name; keywords it does not have are an error that names those it has."""
    known = generators()
    if name not in known:
        raise UsageError(f"no generator {name!r}; there are {', '.join(known)}")
    try:
        return known[name](**keywords)
    except TypeError:
        options = ", ".join(inspect.signature(known[name]).parameters)
        raise UsageError(f"generator {name} has the options {options}; got {', '.join(keywords)}") from None
