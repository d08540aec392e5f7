"""Docs that cannot go stale: the generated page is current, links lead somewhere, everything with a name is mentioned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from promptdsi import __version__
from promptdsi.cli.main import COMMANDS
from promptdsi.corpus import sources
from promptdsi.corpus.generators import generators
from promptdsi.index.export import EXPORTS
from promptdsi.methods import methods
from promptdsi.model.prompts import strategies

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_the_generated_pages_are_current() -> None:
    outcome = subprocess.run([sys.executable, "tools/build_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_everything_with_a_name_is_documented() -> None:
    data_page = (ROOT / "docs/data.md").read_text("utf-8")
    for name in [*sources.names(), *(kind.NAME for kind in generators().values() if kind.__module__.startswith("promptdsi."))]:
        assert f"`{name}" in data_page, name
    model_page = (ROOT / "docs/model.md").read_text("utf-8")
    for name, kind in strategies().items():
        if kind.__module__.startswith("promptdsi."):
            assert f"| `{name}` |" in model_page, name
    index_page = (ROOT / "docs/index.md").read_text("utf-8")
    for name in (*methods(), *EXPORTS):
        assert f"`{name}`" in index_page, name
    cli_page = (ROOT / "docs/cli.md").read_text("utf-8")
    for command in COMMANDS:
        assert f"## promptdsi {command}" in cli_page


def test_every_promise_names_tests_that_exist() -> None:
    page = (ROOT / "docs/promises.md").read_text("utf-8")
    written = "".join(path.read_text("utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    rows = re.findall(r"^\| R(\d+) \|.*\| (.+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    for number, cell in rows:
        named = re.findall(r"`(test_\w+)`", cell)
        assert named, f"R{number}"
        for name in named:
            assert f"def {name}(" in written, name


def test_version_and_changelog_agree() -> None:
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^## (Unreleased|" + re.escape(__version__) + ")", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
