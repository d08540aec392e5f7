"""Import the modules of a folder of the package, so that a new file needs no registration."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def import_all(package: ModuleType) -> list[ModuleType]:
    """Import every module of a package, which registers its classes with their base class."""
    return [importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]


def modules_of(package: ModuleType) -> dict[str, ModuleType]:
    """Modules of a package by their `NAME`, sorted; modules without one are left out."""
    named = {name: module for module in import_all(package) if (name := getattr(module, "NAME", None))}
    return dict(sorted(named.items()))
