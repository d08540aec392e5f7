"""Find what a folder of the package offers by looking into it, so that a new file needs no list to be entered in."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules_of(package: ModuleType) -> dict[str, ModuleType]:
    """Modules of a package by their `NAME`, imported now; modules without a `NAME` are helpers."""
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if name := getattr(module, "NAME", None):
            found[name] = module
    return dict(sorted(found.items()))
