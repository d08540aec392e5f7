"""Studies that are not this repository's: somebody else's folder, and files written by release 0.1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from studies import copy_reports

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.report import study_module, write_report
from promptdsi.bench.runs import RunStore, matrix_of
from promptdsi.bench.system_results import collect_results

OLD = Path(__file__).parent / "golden/format-1"
SYSTEMS = """
report = "first"
system = [{ label = "BM25", method = "bm25" }, { label = "Queries", method = "bm25", train_queries = true }]
"""
REPORT = '''
"""Hits@1 of each system."""

from promptdsi.bench.report import Text
from promptdsi.bench.system_results import on_new
from promptdsi.bench.tables import Column, Table, row

from ..wording import TITLE


def report(results):
    for setting, systems in results.settings():
        rows = [row(system.label, system.score(on_new("Hits@1"))) for system in systems]
        yield Table(f"{setting.label}: {TITLE}", [Column("system", left=True), Column("H@1", best="up")], rows)
    yield Text("That is all.")
'''


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with its own TOML file, scale, report and a helper the report imports."""
    folder = tmp_path / "mine"
    (folder / "scales").mkdir(parents=True)
    (folder / "reports").mkdir()
    (folder / "words.toml").write_text(
        'report = "first"\nsystem = [{ label = "BM25", method = "bm25" }, { label = "Queries", method = "bm25", train_queries = true }]\n'
    )
    (folder / "scales/small.toml").write_text(
        '[run]\nwords = ["demo"]\n[setting.demo]\nstream = { source = "demo", limit = 20, new = 1, share = 0.2 }\nd0 = {}\n'
    )
    (folder / "reports/first.py").write_text(REPORT)
    (folder / "wording.py").write_text('TITLE = "first answers"\n')
    return folder


def test_a_study_of_somebody_else_is_planned_run_and_reported(run: Any, study: Path, no_network: None) -> None:
    common = [str(study / "words.toml"), "--scale", "small", "--results", str(study / "results")]
    planned = run("bench", "plan", *common, "--json")
    assert planned.returncode == 0, planned.stderr
    assert [row["what"] for row in json.loads(planned.stdout)["plan"]] == ["demo: D0", "demo: BM25", "demo: Queries"]
    outcome = run("bench", "run", *common, "--offline", "--json")
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["runs"] == len(json.loads(outcome.stdout)["written"]) == 2
    reported = run("bench", "report", *common)
    assert reported.returncode == 0, reported.stderr
    text = (study / "results/small/words.md").read_text("utf-8")
    assert "**demo: first answers**" in text and "| BM25 | " in text and "That is all." in text
    (study / "reports/first.py").unlink()
    missing = run("bench", "report", *common)
    assert missing.returncode == 1 and "words.toml: wants a report 'first'; there is no report in " in missing.stderr


def test_studies_do_not_see_each_others_modules(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "theirs"
    shutil.copytree(study, other)
    (other / "wording.py").write_text('TITLE = "theirs"\n')
    assert [study_module(folder, "reports.first").TITLE for folder in (study, other)] == ["first answers", "theirs"]


def test_experiment_files_and_records_of_release_0_1_are_read(tmp_path: Path) -> None:
    """Made by release 0.1 and never again: flat keywords, `dial`, cells/ with the old keys."""
    folder = tmp_path / "study"
    shutil.copytree(OLD, folder)
    copy_reports(folder)
    store = RunStore(folder / "results")
    experiment = read_experiment(folder / "old.toml", "small", store)
    results = collect_results(experiment, store)
    assert not results.missing  # every old record is found by the new description of its run
    first = {system.point.system.label: system.records[0] for system in results.all}
    assert first["best"].run.params["rows.row_norm_scale"] == 0.9 and first["best"].run.params["rows.anchor_weight"] == 1.0
    assert first["best"].run.params["add.row_init"] == "document" and first["best"].run.params["add.batch_size"] == 32
    assert first["S++"].run.params["prompt_options"] == {"center": True} and first["S++"].prompt_counts is not None
    assert first["IncDSI"].run.params["add.margin_new"] == 4.0 and first["IncDSI"].searched is not None
    assert first["Sequential"].run.params["add.lr_scale"] == 0.1
    old = json.loads(next((OLD / "results/cells").glob("rows-*.json")).read_text())
    assert first["best"].ranks["test"] == old["ranks"]["test"] and matrix_of(first["best"], "test").last == 1
    report = write_report(experiment, store)[0].read_text("utf-8")
    assert "| BM25 | " in report and "Not run yet" not in report
    path = store.write(first["best"])  # in the new words, under the new name
    assert path.parent.name == "runs" and json.loads(path.read_text())["run"]["params"]["rows.row_norm_scale"] == 0.9
    assert RunStore(folder / "results").run(experiment.points[0].runs[0]) == first["best"]
