"""Names: the field's words, class and module names once in the package, and no references to documents that are not here."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("promptdsi", "experiments", "tools", "tests")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
# Identifiers that name no thing: a pronoun, a participle or an adjective where the noun of the field belongs.
VAGUE = frozenset(
    """one ones found said told held asked asking ask wanted gone care made own whole able beside alike drawn strayed living dead cut cuts
    dial dials harmless unharmed belonging its here this such it them him who whom knowing known judged spoken somebody nobody nought twin
    kin aside finding findings answering together stand_in stand_ins standins remembering spared laid fed kept slack""".split()  # noqa: SIM905
)
# Words that no identifier may contain.
PARTS = frozenset(
    """asked said told care judged dead dial dials finding findings harmless unharmed standin standins
    remembering slack""".split()  # noqa: SIM905
)
# Rules and requirements are quoted where they are needed; these documents are not part of the repository.
REFERENCE = re.compile(r"\b(METHOD|DESIGN|STYLE|WORDS|RETRIEVAL)(\.md)?:? ?(\d+(\.\d+)*|section)|\b(METHOD|DESIGN|RETRIEVAL|WORDS)\.md\b")


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that a module defines, with their lines; names of tests are sentences and do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("test_"):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def is_vague(name: str) -> bool:
    bare = name.strip("_").lower()
    return bare in VAGUE or bool(PARTS & set(bare.split("_")))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_are_words_of_the_field(path: Path) -> None:
    names = [(path.stem, 1), *identifiers(ast.parse(path.read_text("utf-8")))]
    assert not [f"{path.name}:{line} {name}" for name, line in names if is_vague(name)]


def test_class_and_module_names_are_unique() -> None:
    package = [path for path in MODULES if path.is_relative_to(ROOT / "promptdsi")]
    modules = Counter(path.stem for path in package if path.stem not in ("__init__", "__main__"))
    classes = Counter(
        node.name for path in package for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)
    )
    assert not [name for names in (modules, classes) for name, count in names.items() if count > 1]


@pytest.mark.parametrize("path", [*MODULES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_refers_to_a_document_that_is_not_here(path: Path) -> None:
    if path == Path(__file__):
        return
    lines = path.read_text("utf-8").splitlines()
    assert not [f"{path.name}:{number} {line.strip()}" for number, line in enumerate(lines, 1) if REFERENCE.search(line)]
