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
# Names in these files are still to be revised; the list only shrinks.
UNFINISHED = frozenset(
    (
        "experiments/figure_claims.py",
        "experiments/figures.py",
        "experiments/paper_sums.py",
        "experiments/reports/curves.py",
        "experiments/reports/layers.py",
        "experiments/reports/passes.py",
        "experiments/reproduction_values.py",
        "promptdsi/cli/bench_command.py",
        "promptdsi/methods/dsi_method.py",
        "promptdsi/methods/options.py",
        "tests/bench/test_bench_command.py",
        "tests/bench/test_reports.py",
        "tests/bench/test_reproduction.py",
        "tests/bench/test_runs.py",
        "tests/bench/test_schema.py",
        "tests/bench/test_tables.py",
        "tests/cli/test_cli_index.py",
        "tests/engine/test_engine.py",
        "tests/engine/test_engine_rows.py",
        "tests/index/test_forgetting.py",
        "tests/index/test_index.py",
        "tests/index/test_index_damage.py",
        "tests/index/test_index_edge_cases.py",
        "tests/index/test_index_faults.py",
        "tests/index/test_index_growth.py",
        "tests/index/test_index_machine.py",
        "tests/methods/test_baselines.py",
        "tests/methods/test_contract.py",
        "tests/methods/test_dpr.py",
        "tests/methods/test_promptdsi.py",
        "tests/model/test_encoder.py",
        "tests/model/test_published_defect.py",
        "tests/model/test_rows.py",
        "tests/model/test_strategies.py",
        "tests/training/distributed_run.py",
        "tests/training/test_convex.py",
        "tests/training/test_distributed.py",
        "tests/training/test_row_norms.py",
        "tests/training/test_stages.py",
        "tests/training/test_training.py",
        "tools/bench/adding.py",
        "tools/bench/opening.py",
        "tools/bench/passes.py",
        "tools/bench/plain_step.py",
        "tools/bench/queries.py",
        "tools/bench/reading.py",
        "tools/bench/serving.py",
        "tools/bench/summary.py",
        "tools/bench/training.py",
        "tools/docs/build_demo.py",
        "tools/docs/build_screenshots.py",
        "tools/evidence.py",
        "tools/soak/soak_kills.py",
    )
)


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
    if path.relative_to(ROOT).as_posix() in UNFINISHED:
        pytest.skip("names not yet revised")
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
