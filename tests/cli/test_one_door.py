"""The command line and the server use an index through `Index` alone; beside it they import plain records and exceptions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "promptdsi"
MODULES = sorted([*(PACKAGE / "cli").glob("*.py"), *(PACKAGE / "serving").glob("*.py")])
ALLOWED = {
    "promptdsi.index": {"results"},
    "promptdsi.index.index": {"Index"},
    "promptdsi.index.manifest": {"Manifest", "PrunedGeneration"},
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_beneath_the_index_is_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("promptdsi.index")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("promptdsi.index"):
            names = {alias.name for alias in node.names}
            assert node.module == "promptdsi.index.results" or names <= ALLOWED.get(node.module or "", set()), (node.module, names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nobody_reaches_through_the_index(path: Path) -> None:
    """`Index.store` and `Index.opened` are its own business."""
    attributes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)]
    chains = [ast.unparse(node) for node in attributes if isinstance(node.value, ast.Attribute) and node.value.attr in ("store", "opened")]
    assert not [chain for chain in chains if "index" in chain]
