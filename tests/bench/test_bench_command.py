"""`promptdsi bench` on the experiments of this repository, at the smallest scale: they are read, planned, run and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from promptdsi import Corpus
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.run_records import digest
from promptdsi.bench.runs import RunStore

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = ["datasets", "main", "curves", "passes", "utilisation", "topics", "layers", "memory", "ablations", "words", "choose", "frontier"]


def test_every_experiment_is_listed_here() -> None:
    assert {path.stem for path in ROOT.glob("*.toml")} == {*NAMES, "fair"}  # fair is a regime of its own, at no other scale


@pytest.mark.parametrize("scale", ["tiny", "squadx", "paper"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "frontier"])
def test_every_experiment_can_be_read_at_every_scale(name: str, scale: str) -> None:
    experiment = read_experiment(ROOT / f"{name}.toml", scale)
    assert experiment.settings and (experiment.points or name == "datasets")
    assert len({run.file for run in experiment.runs}) == len(experiment.runs)


@pytest.mark.parametrize("scale", ["tiny", "squadx", "paper"])
def test_the_frontier_begins_from_the_d0_ours_is_made_for(scale: str, tmp_path: Path) -> None:
    """With rows that start at random, untrained rows say nothing and an anchor holds noise."""
    choose = read_experiment(ROOT / "choose.toml", scale)
    chosen = {point.system.label: point.value for point in choose.points if point.system.parameter}
    (tmp_path / scale).mkdir()
    (tmp_path / scale / "choose.json").write_text(json.dumps({"chosen": chosen}))
    frontier = read_experiment(ROOT / "frontier.toml", scale, RunStore(tmp_path))
    assert {setting.d0.params["fit.row_init"] for system in (choose, frontier) for setting in system.settings} == {"document"}
    assert frontier.settings[0].d0 == choose.settings[0].d0  # what was chosen is asked where it was chosen


def test_all_of_it_runs_at_the_smallest_scale(run: Any, tmp_path: Path, no_network: None) -> None:
    """The whole way a researcher goes: plan, run, report, choose, run what was chosen; then everything is there."""
    store = tmp_path / "results"
    common = ["--scale", "tiny", "--results", str(store)]
    files = [str(ROOT / f"{name}.toml") for name in NAMES[:-1]]
    planned = run("bench", "plan", *files, *common, "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["hours"] > 0
    outcome = run("bench", "run", *files, *common, "--offline", "--quiet", "--json")
    assert outcome.returncode == 0, outcome.stderr
    written = json.loads(outcome.stdout)
    assert len(written["written"]) == written["runs"] >= 36
    reported = run("bench", "report", *files, *common)
    assert reported.returncode == 0, reported.stderr
    refused = run("bench", "report", str(ROOT / "frontier.toml"), *common)
    assert refused.returncode == 1 and "nothing of frontier has run yet" in refused.stderr
    for verb in ("run", "report"):
        outcome = run("bench", verb, str(ROOT / "frontier.toml"), *common)
        assert outcome.returncode == 0, outcome.stderr
    for name in NAMES:
        text = (store / "tiny" / f"{name}.md").read_text()
        assert "Not run yet" not in text and "Where this comes from" in text, name
    check_topics_with_dev_queries(run, store, common)
    planned = run("bench", "plan", *files, str(ROOT / "frontier.toml"), *common, "--json")
    assert json.loads(planned.stdout)["hours"] == 0
    again = run("bench", "run", *files, *common, "--offline", "--json")
    assert json.loads(again.stdout)["written"] == []
    wrong = run("bench", "run", files[1], *common, "--only", "Magic")
    assert wrong.returncode == 2 and "no system 'Magic'; there are BM25" in wrong.stderr
    wrong = run("bench", "run", files[1], *common, "--setting", "moon")
    assert wrong.returncode == 2 and "no setting 'moon'; there are demo" in wrong.stderr
    demo_run = run("bench", "run", files[1], *common, "--setting", "demo", "--only", "BM25", "--fresh", "--json")
    assert json.loads(demo_run.stdout)["runs"] == 1, demo_run.stderr
    neither = run("bench", "run", str(ROOT / "choose.toml"), files[1], *common, "--setting", "few", "--only", "BM25")
    assert neither.returncode == 2 and "BM25 do not run in few" in neither.stderr


def check_topics_with_dev_queries(run: Any, store: Path, common: list[str]) -> None:
    """Table 5: a record has ids alone; `--queries` reads their texts from the stream."""
    path = next(path for path in sorted((store / "runs").glob("promptdsi-topic-0-*.json")) if json.loads(path.read_text()).get("topics"))
    queryids = [queryid for topic in json.loads(path.read_text())["topics"]["queryids"] for queryid in topic]
    record = json.loads(path.read_text())["run"]
    (folder,) = (store / ".work" / "streams").glob(f"{digest(record['stream'])}/d0")
    dev = {pair.query.queryid: pair.query.text for pair in Corpus.read(folder).pairs("dev")}
    assert queryids and set(queryids) <= set(dev)
    shown = run("bench", "report", str(ROOT / "topics.toml"), *common, "--queries")
    assert shown.returncode == 0, shown.stderr
    text = (store / "tiny" / "topics.md").read_text().casefold()
    assert any(dev[queryid].casefold() in text for queryid in queryids)
