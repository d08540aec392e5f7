"""docs/REPRODUCTION.md: verdicts follow their rules, what has no run is not run, and the same runs give the same page."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from studies import EXPERIMENTS, ROOT, made_up_d0, made_up_run, our_module, report_text

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.run_records import RunRecord
from promptdsi.bench.runs import RunStore, matrix_of
from promptdsi.bench.system_results import collect_results

build: Any = our_module("reproduction")
verdicts: Any = our_module("verdicts")
STORE = RunStore(ROOT / "docs/results")
PLANNED = [
    (name, scale)
    for scale in ("squadx", "fair")
    for name in tomllib.loads((EXPERIMENTS / f"scales/{scale}.toml").read_text("utf-8"))["run"]
]


def has_run(name: str, scale: str) -> bool:
    experiment = read_experiment(EXPERIMENTS / f"{name}.toml", scale, STORE)
    return any(STORE.path(run.file).is_file() for run in experiment.runs) or not experiment.points


REPORTED = [pair for pair in PLANNED if has_run(*pair)]  # experiments whose runs and reports are committed


def figures_between(low: float, high: float) -> Any:
    """A difference and resamples of a normal distribution whose 95 % interval has these ends."""
    quantiles = [NormalDist().inv_cdf((place + 0.5) / 1000) for place in range(1000)]
    return np.array([(low + high) / 2, *((low + high) / 2 + (high - low) / 2 / 1.96 * np.array(quantiles))])


@pytest.mark.parametrize(
    ("ends", "margin", "verdict"),
    [
        ([(0.01, 0.03), (0.001, 0.02)], 0.0, "holds"),
        ([(0.01, 0.03), (-0.01, 0.02)], 0.0, "not shown"),
        ([(0.01, 0.03), (-0.02, -0.01)], 0.0, "refuted"),
        ([(-0.01, 0.02)], 0.02, "holds"),
        ([(-0.03, 0.02)], 0.02, "not shown"),
        ([(-0.04, -0.03)], 0.02, "refuted"),
        ([(0.01, 0.03), None], 0.0, "not run"),
        ([(-0.02, -0.01), None], 0.0, "refuted"),  # what has run is enough to say so
        ([], 0.0, "not run"),
        ([(0.0, 0.0)], 0.0, "not shown"),
    ],
)
def test_a_verdict_follows_from_the_differences(ends: list[Any], margin: float, verdict: str) -> None:
    gaps = [verdicts.Gap("a − b", None if each is None else figures_between(*each)) for each in ends]
    (claim,) = verdicts.judge([verdicts.about("a is better than b", gaps, margin=margin)])
    assert claim.verdict == verdict


def test_verdicts_are_corrected_for_the_number_of_comparisons() -> None:
    """An interval just below zero refutes a claim that is alone, and not one of twenty."""
    against = verdicts.about("a is better than b", [verdicts.Gap("a − b", figures_between(-0.03, -0.001))])
    other = verdicts.about("a is better than c", [verdicts.Gap("a − c", figures_between(-0.02, 0.02))] * 19)
    assert [claim.verdict for claim in verdicts.judge([against])] == ["refuted"]
    assert [claim.verdict for claim in verdicts.judge([against, other])] == ["not shown", "not shown"]


def test_what_another_regime_cannot_test_is_neither_refuted_nor_counted() -> None:
    regime: Any = our_module("regime")
    against = verdicts.about("prompts beat IncDSI", [verdicts.Gap("a − b", figures_between(-0.03, -0.001))] * 19, needs_regime=True)
    alone = verdicts.about("a is better than c", [verdicts.Gap("a − c", figures_between(-0.03, -0.001))])
    squadx, paper = regime.Regime(0.16, 0.10), regime.PAPER
    assert [claim.verdict for claim in verdicts.judge([against, alone], squadx)] == ["cannot be tested in this regime", "refuted"]
    assert verdicts.judge([against], paper)[0].verdict != "cannot be tested in this regime"
    assert "−1.6 (−3.0 to −0.1)" in verdicts.judge([against._replace(gaps=against.gaps[:1])], squadx)[0].evidence


def test_what_a_scale_does_not_plan_is_not_waited_for() -> None:
    ran, never = verdicts.Gap("a − b", figures_between(0.01, 0.03)), verdicts.Gap("a − c", None, planned=False)

    def verdict(*gaps: Any) -> Any:
        return verdicts.judge([verdicts.about("a is better", gaps)])[0]

    assert verdict(ran, never).verdict == "holds" and verdict(ran, never).evidence.endswith("not planned here: a − c")
    assert verdict(never).verdict == "not planned here"
    assert verdict(ran, never, verdicts.Gap("a − d", None)).verdict == "not run"


def test_printed_figures_that_are_truncated_are_named() -> None:
    sums = verdicts.arithmetic("sums", [("x", 7.675, "7.7")])
    assert (sums.verdict, sums.evidence) == ("arithmetic verified", "1 of 1 printed figures follow by rounding")
    part = verdicts.arithmetic("sums", [("x", 7.675, "7.7"), ("y", 7.664, "7.6"), ("z", 877.2, "977")])
    assert part.verdict == "arithmetic verified in part"
    assert "not y: 7.66, printed 7.6 (truncated); not z: 877.20, printed 977" in part.evidence
    assert verdicts.arithmetic("sums", [("z", 877.2, "977")]).verdict == "refuted"


def test_parameters_of_whole_models_are_counted_too() -> None:
    """109,482,240 of BERT and 108,617 or 299,424 rows of 768: 192.9 and 339.4 million; two BERTs are 219.0."""
    bert, sbert = (our_module("paper_sums").parameters(backbone).evidence for backbone in ("BERT", "SBERT"))
    assert "MS MARCO 300k: 339.44, printed 340" in bert and "DPR: two encoders: 218.96, printed 220" in bert and "193" not in bert
    assert bert.startswith("6 of 9 printed figures follow") and sbert.startswith("6 of 8 printed figures follow")


def test_an_item_takes_the_worst_of_its_claims() -> None:
    claim = verdicts.Claim

    def overall(*words: str) -> str:
        return str(build.overall([claim("", verdict, "") for verdict in words]))

    assert overall("arithmetic verified") == "**arithmetic verified**"
    assert overall("holds", "arithmetic verified") == "**holds**; arithmetic verified"
    assert overall("holds", "not run") == "**holds** (holds 1, not run 1)"
    assert overall("holds", "not shown", "refuted").startswith("**refuted** (holds 1, refuted 1, not shown 1")
    assert overall("holds", "cannot be tested in this regime").startswith("**cannot be tested in this regime** (")
    not_counted = claim("", "refuted", "", counted=False)
    assert build.overall([not_counted, claim("", "not run", "")]) == "**not run**"


def lines_of_the_overview(page: str) -> list[str]:
    return [line for line in page.split("## Overview")[1].split("##")[0].splitlines()[4:] if line]


def test_the_overview_has_every_table_and_figure_of_the_paper(tmp_path: Path) -> None:
    page = build.page(RunStore(tmp_path))
    named = [line.split(" | ")[0].removeprefix("| ") for line in lines_of_the_overview(page)]
    numbers = {
        kind: {number for name in named if name.startswith(kind) for number in re.findall(r"\d", name)} for kind in ("Table", "Figure")
    }
    assert numbers == {"Table": set("12345"), "Figure": set("1234567")}
    bert, sbert = (page.split(f"### Table {number}")[1].split("###")[0] for number in (2, 3))
    assert "| DPR | 70.3 / 51.9 | 70.1 / 49.8 | 68.8 / – | 62.8 / – | – | – |" in bert and "| Rows only | – | – | – | – | – | – |" in bert
    assert "| Topic | 86.8 / 72.1 | 91.1 / 75.1 | 81.3 / 59.1 | 88.1 / 70.5 | – | – |" in sbert and "| DPR |" not in sbert


def test_the_page_is_made_from_records_alone(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    nothing = build.page(store)
    answers = {line.split(" | ")[0]: line.split("|")[-2] for line in lines_of_the_overview(nothing)}
    assert len(answers) == len(build.ITEMS) and answers.pop("| Figure 1") == " **shown, not judged** "  # a drawing needs no run
    assert all("not run" in answer or "arithmetic verified" in answer for answer in answers.values())
    for name in {item.experiment for item in build.ITEMS if isinstance(item, build.Item)}:
        for run in read_experiment(EXPERIMENTS / f"{name}.toml", "squadx").runs:
            store.write(made_up_run(run))
    page = build.page(store)
    assert page == build.page(store) and page != nothing
    assert "| not shown |" in page and "36 of 36 runs" in page  # ranks made up at random keep no order
    assert "877.20, printed 977" in nothing and str(tmp_path) not in page


def test_every_committed_run_belongs_to_an_experiment() -> None:
    """A run of settings that were given up must not look like a result."""
    store = RunStore(ROOT / "docs" / "results")
    experiments = [read_experiment(EXPERIMENTS / f"{name}.toml", scale, store) for name, scale in PLANNED]
    files = {run.file for experiment in experiments for point in experiment.points for run in point.runs}
    files |= {setting.d0.file for experiment in experiments for setting in experiment.settings}
    assert not {path.stem for path in (store.folder / "runs").glob("*.json")} - files


def figures_of(text: str) -> tuple[str, list[float]]:
    """A report without its figures and what marks the best of them, and the figures."""
    text = re.sub(r"\*\*|</?ins>", "", text)
    numbers = r"(?<![\w.])[+−]?\d[\d,]*\.\d+"
    return re.sub(numbers, "#", text), [float(number.replace("−", "-").replace(",", "")) for number in re.findall(numbers, text)]


@pytest.mark.parametrize(("experiment", "scale"), REPORTED)
def test_committed_reports_are_what_the_committed_runs_give(experiment: str, scale: str) -> None:
    """To a tenth of a point: processors add up in different orders."""
    store = RunStore(ROOT / "docs/results")
    read = read_experiment(EXPERIMENTS / f"{experiment}.toml", scale, store)
    now = report_text(read, store)
    (committed, figures), (current, again) = figures_of((store.folder / f"{scale}/{experiment}.md").read_text("utf-8")), figures_of(now)
    assert current == committed, f"docs/results/{scale}/{experiment}.md is stale: promptdsi bench report writes it anew"
    assert again == pytest.approx(figures, abs=0.11)
    check_beginning(now)
    assert json.loads((store.folder / f"{scale}/{experiment}.json").read_text("utf-8"))["summary"].keys() == {
        "Tested",
        "Result",
        "Not shown",
    }


def check_beginning(text: str) -> None:
    """Three sentences, one figure, a table of at most ten lines; then the details, and which settings were looked at."""
    head, details = text.split("\n## Details\n")
    title, *parts = re.split(r"\n\n+", head.strip())
    sentences = [part for part in parts if re.match(r"\*\*(Tested|Result|Not shown):\*\* ", part)]
    assert parts[:3] == sentences and all(re.search(r"\.$", part) and not re.search(r"\. [A-Z]", part) for part in sentences)
    assert parts[0].startswith("**Tested:** n = ") and head.count("](") == 1
    assert title.startswith("# ") and 1 <= len([line for line in parts[-1].splitlines() if line.startswith("| ")]) - 2 <= 10
    assert "\n## Hyper-parameters\n" in details


def test_what_we_know_is_one_page() -> None:
    page = (ROOT / "docs" / "results" / "README.md").read_text("utf-8")  # test_docs.py makes it again and compares
    assert len(page.splitlines()) <= 90 and str(ROOT) not in page
    for title in ("Claims of the paper", "Claims of IncDSI", "Claims of this project", "As the paper trains", "Which hyper-parameters"):
        assert f"## {title}" in page
    assert len(re.findall(r"\([+−]", page)) > 10 and "on the 42 dev queries of the first new corpus" in page


def test_the_fair_regime_answers_from_whatever_has_run(tmp_path: Path) -> None:
    """With nothing, with one stream and some systems, and with more: the report and the page say what is there."""
    results_page, store = our_module("results_page"), RunStore(tmp_path)
    experiment = read_experiment(EXPERIMENTS / "fair.toml", "fair", store)
    some = ("Dense", "IncDSI", "Rows only", "Rows only, dropout as with prompts", "One random prompt, frozen", "S++")
    for number, setting in enumerate(experiment.settings[:2]):
        store.write(made_up_d0(setting.d0))
        for point in experiment.points:
            if point.setting is setting and point.label in some[number:]:
                store.write(made_up_run(point.runs[0]))
        text = report_text(read_experiment(EXPERIMENTS / "fair.toml", "fair", store), store)
        check_beginning(text)
        table = text.split("\n## Details\n")[0]
        for label in some[1:5]:
            assert f"| prompts − {label} | A_T H@10 |" in table and f"| prompts − {label} | D0 H@10 |" in table
        assert "prompts (S++; in points)" in table and "| gate: loss of D0's last epoch, below 0.5 |" in table
        assert "not passed" in table or "not known" in table or "not the paper's regime" in table
        assert "too few to rank systems" in table and "<ins>" not in text
    made_up = results_page.fair(FairAlone(store))
    assert made_up.startswith("**Tested:** n = 40 test queries on D0 and 55 on new documents (stream 0)")
    assert results_page.fair(FairAlone(RunStore(tmp_path / "empty"))).startswith("Not run yet: `promptdsi bench run experiments/fair.toml")


class FairAlone:
    """What results_page.fair reads of its studies."""

    def __init__(self, store: RunStore) -> None:
        experiment = read_experiment(EXPERIMENTS / "fair.toml", "fair", store)
        self.experiments = {"fair": experiment}
        ran = any(store.path(run.file).is_file() for run in experiment.runs)
        self.results = {"fair": collect_results(experiment, store)} if ran else {}

    def link(self, name: str) -> str:
        return name


def test_runs_made_again_gave_the_committed_figures() -> None:
    """docs/results/again.md speaks of runs as they are committed, and of what another run of them gave."""
    store = RunStore(ROOT / "docs/results")
    rows = json.loads((store.folder / "again.json").read_text("utf-8"))["rows"]
    assert len(rows) >= 2
    for row in rows:
        record = store.read(row["run"])
        assert isinstance(record, RunRecord)
        assert record.versions["code"] == row["code then"], f"{row['run']} was run since: make results-again"
        matrix = matrix_of(record, record.run.split)
        for figure, name in ((matrix.on_d0("Hits@1"), "D0 H@1"), (matrix.average("Hits@10"), "A_T H@10")):
            assert 100 * figure[0] == pytest.approx(row[name], abs=1e-3)
            assert row[f"{name} again"] == pytest.approx(row[name], abs=0.5), f"{row['run']}: other figures when run again"
