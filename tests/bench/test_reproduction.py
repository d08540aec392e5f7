"""docs/REPRODUCTION.md: verdicts follow their rules, what has no cell is not run, and the same cells give the same page."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_reports import record_of

from promptdsi.bench import reports
from promptdsi.bench.cells import Results, matrix_of
from promptdsi.bench.findings import gather
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.reporting import markdown
from promptdsi.discovery import modules_of
from promptdsi.evaluation.continual import Estimate

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("build_reproduction")


@pytest.mark.parametrize(
    ("ends", "margin", "verdict"),
    [
        ([(0.01, 0.03), (0.001, 0.02)], 0.0, "ordering holds"),
        ([(0.01, 0.03), (-0.01, 0.02)], 0.0, "not shown"),
        ([(0.01, 0.03), (-0.02, -0.01)], 0.0, "ordering does not hold"),
        ([(-0.01, 0.02)], 0.02, "ordering holds"),
        ([(-0.03, 0.02)], 0.02, "not shown"),
        ([(-0.04, -0.03)], 0.02, "ordering does not hold"),
        ([(0.01, 0.03), None], 0.0, "not run"),
        ([(-0.02, -0.01), None], 0.0, "ordering does not hold"),  # what has run is enough to say so
        ([], 0.0, "not run"),
        ([(-0.02, -6e-17)], 0.0, "not shown"),  # zero, but for rounding
    ],
)
def test_a_verdict_follows_from_the_intervals(build: Any, ends: list[Any], margin: float, verdict: str) -> None:
    claims = build.claims
    gaps = [claims.Gap("a − b", None if each is None else Estimate(sum(each) / 2, *each)) for each in ends]
    assert claims.judge("a is better than b", gaps, margin=margin).verdict == verdict


def test_what_a_scale_does_not_plan_is_not_waited_for(build: Any) -> None:
    claims = build.claims
    ran, never = claims.Gap("a − b", Estimate(0.02, 0.01, 0.03)), claims.Gap("a − c", None, planned=False)
    found = claims.judge("a is better", [ran, never])
    assert found.verdict == "ordering holds" and found.evidence.endswith("not planned here: a − c")
    assert claims.judge("a is better", [never]).verdict == "not planned here"
    assert claims.judge("a is better", [ran, never, claims.Gap("a − d", None)]).verdict == "not run"


def test_printed_figures_that_are_cut_are_named(build: Any) -> None:
    sums = build.claims.sums
    whole = sums.arithmetic("sums", [("x", 7.675, "7.7")])
    assert (whole.verdict, whole.evidence) == ("arithmetic verified", "1 of 1 printed figures follow by rounding")
    part = sums.arithmetic("sums", [("x", 7.675, "7.7"), ("y", 7.664, "7.6"), ("z", 877.2, "977")])
    assert part.verdict == "arithmetic verified in part"
    assert "not y: 7.66, printed 7.6 (cut); not z: 877.20, printed 977" in part.evidence
    assert sums.arithmetic("sums", [("z", 877.2, "977")]).verdict == "ordering does not hold"


def test_parameters_of_whole_models_are_counted_too(build: Any) -> None:
    """109,482,240 of BERT and 108,617 or 299,424 rows of 768: 192.9 and 339.4 million; two BERTs are 219.0."""
    bert, sbert = (build.claims.sums.parameters(backbone).evidence for backbone in ("BERT", "SBERT"))
    assert "MS MARCO 300k: 339.44, printed 340" in bert and "DPR: two encoders: 218.96, printed 220" in bert and "193" not in bert
    assert bert.startswith("6 of 9 printed figures follow") and sbert.startswith("6 of 8 printed figures follow")


def test_an_item_takes_the_worst_of_its_claims(build: Any) -> None:
    def said(*verdicts: str) -> str:
        return str(build.overall([build.Claim("", verdict, "") for verdict in verdicts]))

    assert said("arithmetic verified") == "**arithmetic verified**"
    assert said("ordering holds", "arithmetic verified") == "**ordering holds**; arithmetic verified"
    assert said("ordering holds", "not run") == "**ordering holds** (holds 1, not run 1)"
    assert said("ordering holds", "not shown", "ordering does not hold").startswith("**ordering does not hold** (holds 1, does not 1")
    assert build.overall([build.Claim("", "ordering does not hold", "", counted=False), build.Claim("", "not run", "")]) == "**not run**"


def lines_of_the_overview(page: str) -> list[str]:
    return [line for line in page.split("## Overview")[1].split("##")[0].splitlines()[4:] if line]


def test_the_overview_has_every_table_and_figure_of_the_paper(build: Any, tmp_path: Path) -> None:
    page = build.page(Results(tmp_path))
    named = [line.split(" | ")[0].removeprefix("| ") for line in lines_of_the_overview(page)]
    numbers = {kind: {number for one in named if one.startswith(kind) for number in re.findall(r"\d", one)} for kind in ("Table", "Figure")}
    assert numbers == {"Table": set("12345"), "Figure": set("1234567")}
    bert, sbert = (page.split(f"### Table {number}")[1].split("###")[0] for number in (2, 3))
    assert "| DPR | 70.3 / 51.9 | 70.1 / 49.8 | 68.8 / – | 62.8 / – | – | – |" in bert and "| Rows only | – | – | – | – | – | – |" in bert
    assert "| Topic | 86.8 / 72.1 | 91.1 / 75.1 | 81.3 / 59.1 | 88.1 / 70.5 | – | – |" in sbert and "| DPR |" not in sbert


def test_the_page_is_made_from_cells_alone(build: Any, tmp_path: Path) -> None:
    results = Results(tmp_path)
    nothing = build.page(results)
    verdicts = {line.split(" | ")[0]: line.split("|")[-2] for line in lines_of_the_overview(nothing)}
    assert len(verdicts) == len(build.ITEMS) and verdicts.pop("| Figure 1") == " **shown, not judged** "  # a drawing needs no cell
    assert all("not run" in one or "arithmetic verified" in one for one in verdicts.values())
    for name in {item.experiment for item in build.ITEMS if isinstance(item, build.Item)}:
        for cell in read_experiment(ROOT / "experiments" / f"{name}.toml", "squadx").cells:
            results.write(cell.file, record_of(cell))
    whole = build.page(results)
    assert whole == build.page(results) and whole != nothing
    assert "| ordering does not hold |" in whole and "36 of 36 cells" in whole  # ranks made up at random keep no order
    assert "877.20, printed 977" in nothing and str(tmp_path) not in whole


def test_every_committed_cell_belongs_to_an_experiment() -> None:
    """A cell of settings that were given up must not look like a result."""
    results = Results(ROOT / "docs" / "results")
    experiments = [read_experiment(path, "squadx", results) for path in sorted((ROOT / "experiments").glob("*.toml"))]
    known = {cell.file for one in experiments for point in one.points for cell in point.cells}
    known |= {setting.d0.file for one in experiments for setting in one.settings}
    assert not {path.stem for path in (results.folder / "cells").glob("*.json")} - known


def figures_of(text: str) -> tuple[str, list[float]]:
    """A report without its figures and what marks the best of them, and the figures."""
    text = re.sub(r"\*\*|</?ins>", "", text)
    numbers = r"(?<![\w.])[+−]?\d[\d,]*\.\d+"
    return re.sub(numbers, "#", text), [float(one.replace("−", "-").replace(",", "")) for one in re.findall(numbers, text)]


@pytest.mark.parametrize("experiment", sorted(path.stem for path in (ROOT / "experiments").glob("*.toml")))
def test_committed_reports_are_what_the_committed_cells_give(experiment: str) -> None:
    """To a tenth of a point: processors add up in different orders."""
    results = Results(ROOT / "docs/results")
    read = read_experiment(ROOT / "experiments" / f"{experiment}.toml", "squadx", results)
    findings = gather(read, results)
    now = markdown(findings, list(modules_of(reports)[read.report].parts(findings)))
    (said, figures), (says, again) = figures_of((results.folder / f"squadx/{experiment}.md").read_text("utf-8")), figures_of(now)
    assert says == said, f"docs/results/squadx/{experiment}.md is stale: promptdsi bench report writes it anew"
    assert again == pytest.approx(figures, abs=0.11)


def test_cells_run_again_gave_the_committed_figures() -> None:
    """docs/results/again.md speaks of cells as they are committed, and of what another run of them gave."""
    results = Results(ROOT / "docs/results")
    rows = json.loads((results.folder / "again.json").read_text("utf-8"))["rows"]
    assert len(rows) >= 2
    for row in rows:
        record = results.read(row["cell"])
        assert record is not None and record["versions"]["code"] == row["code then"], f"{row['cell']} was run since: make results-again"
        matrix = matrix_of(record, record["cell"].get("split", "test"))
        for figure, name in ((matrix.on_d0("Hits@1"), "D0 H@1"), (matrix.average("Hits@10"), "A_T H@10")):
            assert 100 * figure[0] == pytest.approx(row[name], abs=1e-3)
            assert row[f"{name} again"] == pytest.approx(row[name], abs=0.5), f"{row['cell']}: other figures when run again"
