"""Find what a folder of the package offers by looking into it, so that a new file needs no list to be entered in."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def import_all(package: ModuleType) -> list[ModuleType]:
    """Import every module of a package; classes it defines are then known to their base class."""
    return [importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]


def modules_of(package: ModuleType) -> dict[str, ModuleType]:
    """Modules of a package by their `NAME`; modules without one are helpers."""
    named = {name: module for module in import_all(package) if (name := getattr(module, "NAME", None))}
    return dict(sorted(named.items()))
