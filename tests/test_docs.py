"""Docs that cannot go stale: the generated page is current, links lead somewhere, everything with a name is mentioned."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small
import studies

from promptdsi import Corpus, __version__
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import ExperimentFile, SettingTable, SystemTable
from promptdsi.cli.main import BENCH, COMMANDS
from promptdsi.corpus import sources
from promptdsi.corpus.generators import generators
from promptdsi.index.export import EXPORTS
from promptdsi.methods import methods
from promptdsi.model.prompts import strategies

ROOT = Path(__file__).parent.parent
PROMISED = list(range(1, 36))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("tool", ["docs.build_cli", "docs.build_http", "docs.build_reproduction", "bench.summary"])
def test_the_generated_pages_are_current(tool: str) -> None:
    outcome = subprocess.run([sys.executable, "-m", f"tools.{tool}", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_everything_with_a_name_is_documented() -> None:
    data_page = (ROOT / "docs/data.md").read_text("utf-8")
    for name in [*sources.source_names(), *(kind.NAME for kind in generators().values() if kind.__module__.startswith("promptdsi."))]:
        assert f"`{name}" in data_page, name
    model_page = (ROOT / "docs/model.md").read_text("utf-8")
    for name, kind in strategies().items():
        if kind.__module__.startswith("promptdsi."):
            assert f"| `{name}` |" in model_page, name
    operating_page = (ROOT / "docs/operating.md").read_text("utf-8")
    assert not [name for name in EXPORTS if f"| `{name}` |" not in operating_page]
    cli_page = (ROOT / "docs/cli.md").read_text("utf-8")
    for command in (*COMMANDS, *(f"bench {name}" for name in BENCH)):
        assert f"## promptdsi {command}\n" in cli_page
    research_page = (ROOT / "docs/research.md").read_text("utf-8")
    for name, method in methods().items():
        free = "yes" if method.rehearsal_free else "no"
        assert re.search(rf"^\| `{re.escape(name)}` \|.*\| {free} \| `", research_page, re.MULTILINE), name
    for path in (ROOT / "experiments").glob("**/*.toml"):
        assert f"`{path.name}`" in research_page, path.name


def test_the_example_of_a_baseline_is_right(backbone: str, corpora: list[Corpus], tmp_path: Path) -> None:
    page = (ROOT / "docs/research.md").read_text("utf-8")
    (code,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class QueryMeans" in text)
    (tmp_path / "shown_in_docs.py").write_text(code)
    spec = importlib.util.spec_from_file_location("shown_in_docs", tmp_path / "shown_in_docs.py")
    assert spec is not None and spec.loader is not None
    sys.modules["shown_in_docs"] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        params = {key: value for key, value in small.PARAMS.items() if key not in ("add_epochs", "add.epochs")}
        method = module.QueryMeans.from_params(params | {"backbone": backbone, "add.norm_scale": 0.9}).fit(corpora[0])
        before = [block.clone() for block in method.model_.rows.blocks]
        method.add(corpora[1]).save(tmp_path / "saved")
        assert all(old.equal(new) for old, new in zip(before, method.model_.rows.blocks, strict=False))
        assert module.QueryMeans.load(tmp_path / "saved").search("tea", k=3) == method.search("tea", k=3)
        assert f'method = "{module.QueryMeans.name}"' in page
    finally:
        del sys.modules["shown_in_docs"]


def test_the_example_of_a_study_is_right(tmp_path: Path) -> None:
    """Its files as they are shown, but for the baseline, which is not installed; runs are made up."""
    page = (ROOT / "docs/research.md").read_text("utf-8")
    experiment, scale = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (code,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def report(" in text)
    for name, text in {"means.toml": experiment, "scales/small.toml": scale, "reports/first_hits.py": code}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("query-means", "dense"))
    store = RunStore(tmp_path / "results")
    study = read_experiment(tmp_path / "means.toml", "small", store)
    for run in study.runs:
        store.write(studies.made_up_run(run))
    report = studies.report_text(study, store)
    assert "| Query means | " in report and "| S++ | " in report and "the demo corpus: after the last corpus" in report
    keys = {name for table in (ExperimentFile, SystemTable, SettingTable) for name in table.model_fields} - {"system"}
    assert not [key for key in keys if f"`{key}" not in page], "a key of these files is not described"


def test_every_promise_names_tests_that_exist() -> None:
    page = (ROOT / "docs/promises.md").read_text("utf-8")
    written = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    rows = re.findall(r"^\| R(\d+) \|.*\| (.+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == PROMISED
    for number, tests in rows:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, f"R{number}"
        for name in named:
            assert f"def {name}(" in written, name


def test_version_and_changelog_agree() -> None:
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^## (Unreleased|" + re.escape(__version__) + ")", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_the_architecture_page_names_what_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    folders = "|".join(path.name for path in (ROOT / "promptdsi").iterdir() if path.is_dir())
    named = set(re.findall(rf"\b(?:{folders})/[\w/]*(?:\.py)?", page))
    assert len(named) > 20 and not {name for name in named if not (ROOT / "promptdsi" / name).exists()}
