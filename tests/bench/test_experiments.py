"""Experiments: TOML to cells, cells to files, resumed and rebuilt; and choices that never see a test query."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small
from promptdsi.bench.cells import Results, keywords, matrix_of, pack, unpack
from promptdsi.bench.findings import gather
from promptdsi.bench.reporting import write_report
from promptdsi.bench.reports.choosing import _limits
from promptdsi.bench.running import Runner

from promptdsi import Corpus
from promptdsi.bench import choosing
from promptdsi.bench.plan import read_experiment
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.evaluation.evaluate import load_queries, rank_queries
from promptdsi.methods.incdsi import IncDSI
from promptdsi.methods.rows_only import RowsOnly


@pytest.fixture
def folder(tmp_path: Path, backbone: str) -> Path:
    return small.experiments(tmp_path, backbone)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_a_run_writes_one_file_per_cell_and_goes_on_where_it_stopped(folder: Path, results: Results) -> None:
    experiment = read_experiment(folder / "both.toml", "small")
    cells = experiment.cells
    assert len(cells) == 5 and len({cell.file for cell in cells}) == 5
    runner = Runner(results, offline=True)
    assert [path.stem for path in runner.run(cells[:2])] == [cell.file for cell in cells[:2]]
    before = results.path(cells[0].file).read_bytes()
    said: list[str] = []
    written = Runner(results, offline=True, say=said.append).run(cells)
    assert [path.stem for path in written] == [cell.file for cell in cells[2:]]
    assert results.path(cells[0].file).read_bytes() == before
    assert not any("learning D0" in line for line in said)  # one checkpoint serves all
    assert Runner(results, offline=True).run(cells) == []
    again = Runner(results, offline=True).run(cells[:1], fresh=True)
    assert json.loads(again[0].read_text())["ranks"] == json.loads(before)["ranks"]  # the same seed, the same ranks
    assert Runner(results, offline=True).run(cells[:1], fresh=True, until=0.0) == []


def test_a_cell_run_again_is_compared_with_the_recorded_one(folder: Path, results: Results) -> None:
    cell = read_experiment(folder / "both.toml", "small").cells[0]
    said: list[str] = []
    runner = Runner(results, offline=True, say=said.append)
    runner.run([cell])
    runner.run([cell], fresh=True)
    assert said[-1].startswith("run again: 0 of ")
    record = results.read(cell.file)
    assert record is not None
    record["ranks"]["test"]["0"][0][0] += 3
    results.write(cell.file, record)
    runner.run([cell], fresh=True)
    asked = sum(len(corpus) for step in record["ranks"]["test"].values() for corpus in step)
    assert said[-1] == f"run again: 1 of {asked:,} ranks differ from the recorded ones"
    record["ranks"]["dev"], record["data"]["queries"]["dev"] = record["ranks"]["test"], record["data"]["queries"]["test"]
    results.write(cell.file, record)  # as early cells were: asked dev queries too
    runner.run([cell], fresh=True)
    assert said[-1] == f"run again: 1 of {asked:,} ranks differ from the recorded ones"
    record["data"]["queries"]["test"][0] = "other"
    results.write(cell.file, record)
    runner.run([cell], fresh=True)
    assert said[-1] == "run again: the recorded run was asked other queries"
    results.path(cell.file).write_text("{")  # what cannot be read is replaced, not compared
    runner.run([cell], fresh=True)
    assert said[-1].endswith("; it is replaced") and results.read(cell.file) is not None


def test_a_cell_holds_the_ranks_a_user_would_see(folder: Path, results: Results, backbone: str) -> None:
    experiment = read_experiment(folder / "both.toml", "small")
    cell = next(cell for cell in experiment.cells if cell.label == "IncDSI")
    runner = Runner(results, offline=True)
    runner.run([cell])
    record = results.read(cell.file)
    assert record is not None
    stream = runner.stream(cell.d0.stream, "test")
    d0, checksum = runner.d0(cell.d0)
    method = IncDSI.from_params(cell.params | record["searched"]["chosen"] | {"offline": True}).begin_from(d0, stream.corpora[0])
    for step, corpus in enumerate(stream.corpora):
        if step:
            method.add(corpus)
        for place in range(step + 1):
            expected = rank_queries(method, load_queries(stream.corpora[place], "test")).query_ranks
            assert unpack(record["ranks"]["test"][str(step)][place]) == expected
    assert record["d0_sha256"] == checksum and record["trained_parameters"] == method.trained_parameters()
    assert [step["documents"] for step in record["steps"]] == [len(corpus) for corpus in stream.corpora[1:]]
    assert matrix_of(record, "test").last == 2
    assert record["rehearsal_free"] is False and record["extra_bytes"] == method.extra_bytes() > 0
    assert not [one for one in record["data"]["sizes"] if one["corpus"] == "tune"][1:]


def test_cells_that_share_vectors_are_the_same_as_cells_run_alone(folder: Path, results: Results, tmp_path: Path) -> None:
    cells = read_experiment(folder / "both.toml", "small").cells
    together = Runner(results, offline=True)
    together.run(cells)
    assert together._known[1].spared > 0
    for number, cell in enumerate(cells):
        alone = Results(tmp_path / f"alone-{number}")
        Runner(alone, offline=True).run([cell])
        one, other = results.read(cell.file), alone.read(cell.file)
        assert one is not None and other is not None
        assert one["ranks"] == other["ranks"] and one["d0_sha256"] == other["d0_sha256"] and one.get("searched") == other.get("searched")


def test_a_stream_may_name_the_generator_of_its_pseudo_queries(results: Results) -> None:
    spec = {"source": "demo", "limit": 20, "new": 1, "share": 0.2, "pseudo": {"generator": "spans", "per_document": 3, "seed": 5}}
    stream = Runner(results, offline=True).stream(spec, "dev")
    plain = Runner(results, offline=True).stream({key: value for key, value in spec.items() if key != "pseudo"}, "dev")
    for corpus, before in zip(stream.corpora, plain.corpora, strict=True):
        written = corpus.pairs("train", kinds=("pseudo",))
        assert corpus.documents == before.documents and not before.pairs("train", kinds=("pseudo",))
        assert {pair.docid for pair in written} == {document.docid for document in corpus.documents}
        assert 0 < len(written) <= 3 * len(corpus)
    with pytest.raises(UsageError, match="no generator"):
        Runner(results, offline=True).stream(spec | {"pseudo": {"generator": "nobody"}}, "dev")


def test_a_missing_checkpoint_is_learned_again_and_compared(folder: Path, results: Results) -> None:
    setting = read_experiment(folder / "both.toml", "small").settings[0]
    _, checksum = Runner(results, offline=True).d0(setting.d0)
    import shutil

    shutil.rmtree(results.work / setting.d0.file)
    said: list[str] = []
    second, again = Runner(results, offline=True, say=said.append).d0(setting.d0)
    assert again == checksum and isinstance(second, RowsOnly)
    assert said[-1].startswith("D0 was learned again: the same weights; 0 of ")
    record = results.read(setting.d0.file)
    assert record is not None and record["sha256"] == checksum and set(record["ranks"]) == {"dev"}
    record["ranks"]["dev"]["0"][0][0] += 3
    record["sha256"] = "0" * 64
    results.write(setting.d0.file, {key: value for key, value in record.items() if key != "format"})
    shutil.rmtree(results.work / setting.d0.file)
    Runner(results, offline=True, say=said.append).d0(setting.d0)
    assert said[-1].startswith("D0 was learned again: other weights; 1 of ")
    record["data"]["queries"]["dev"][0] = "other"
    results.write(setting.d0.file, {key: value for key, value in record.items() if key != "format"})
    shutil.rmtree(results.work / setting.d0.file)
    with pytest.raises(PromptDSIError, match="was made from other data"):
        Runner(results, offline=True).d0(setting.d0)


WATCHED = """
import json, sys
from pathlib import Path
opened = []
def hook(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
sys.addaudithook(hook)
from promptdsi.bench.cells import Results
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.reporting import write_report
from promptdsi.bench.running import Runner
folder, place, work = map(Path, sys.argv[1:])
experiment, results = read_experiment(folder / "choose.toml", "small"), Results(place, work)
Runner(results, offline=True).run(experiment.cells)
write_report(experiment, results)
print(json.dumps(opened))
"""


def test_choosing_never_opens_a_test_query(folder: Path, results: Results) -> None:
    """From D0 to the chosen dials: not one qrels/test.tsv is opened, and deleting them all changes nothing.

    Watched in a process of its own: an audit hook stays for good, and with one threads that start together under coverage can fail.
    """
    experiment = read_experiment(folder / "choose.toml", "small")
    Runner(results, offline=True).stream(experiment.settings[0].d0.stream, "dev")  # written once, with all its files
    tests = list(results.work.rglob("test.tsv"))
    assert len(tests) >= 3
    words = [sys.executable, "-c", WATCHED, *map(str, (folder, results.folder, results.work))]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    opened = json.loads(ended.stdout)
    assert [name for name in opened if name.endswith("dev.tsv")] and not [name for name in opened if name.endswith("test.tsv")]
    assert all("test" not in json.loads(path.read_text())["ranks"] for path in (results.folder / "cells").glob("*.json"))
    chosen = results.choices("small", "choose")
    for path in tests:
        path.unlink()
    other = Results(results.folder.parent / "blind", results.work)
    Runner(other, offline=True).run(experiment.cells)
    write_report(experiment, other)
    assert other.choices("small", "choose") == chosen


def test_what_was_chosen_is_what_is_asked_test_queries(folder: Path, results: Results) -> None:
    with pytest.raises(DataError, match=r"run and report choose\.toml first"):
        read_experiment(folder / "frontier.toml", "small", results)
    choose = read_experiment(folder / "choose.toml", "small")
    Runner(results, offline=True).run(choose.cells)
    write_report(choose, results)
    path = results.folder / "small/choose.json"
    whole = path.read_text()
    path.write_text(json.dumps({"chosen": {"best": 0.9}}))
    with pytest.raises(DataError, match="'S\\+\\+' has no dial chosen yet"):  # or every value of it would be asked test queries
        read_experiment(folder / "frontier.toml", "small", results)
    path.write_text(whole)
    frontier = read_experiment(folder / "frontier.toml", "small", results)
    chosen = results.choices("small", "choose")
    assert {point.system.label: point.value for point in frontier.points} == {"IncDSI": None, **chosen}
    Runner(results, offline=True).run(frontier.cells)
    written = write_report(frontier, results)
    text = written[0].read_text()
    against = text.split("best against each, paired over queries**")[1]
    assert "| S++ |" in against and "| IncDSI |" in against
    with pytest.raises(PromptDSIError, match="a choice is made on dev queries"):
        choosing.choose(gather(frontier, results).all)


def test_a_search_without_documents_to_search_on_is_refused_before_anything_runs(folder: Path, results: Results) -> None:
    scale = folder / "scales/small.toml"
    scale.write_text(scale.read_text().replace(", tune = 5", ""))
    cells = read_experiment(folder / "both.toml", "small").cells
    with pytest.raises(PromptDSIError, match="no tune documents"):
        Runner(results, offline=True).run(cells)
    assert not list(results.folder.glob("cells/*.json"))


def test_the_rule_of_choosing(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {("best", 1): (0.80, 0.60), ("best", 2): (0.84, 0.58), ("best", 3): (0.86, 0.50)}
    figures |= {
        ("weak", 1): (0.70, 0.60),
        ("weak", 2): (0.75, 0.576),
        ("weak", 3): (0.90, 0.57),
        ("lost", 1): (0.9, 0.2),
        ("lost", 2): (0.8, 0.3),
    }

    class Fake:
        def __init__(self, label: str, number: int) -> None:
            system = type("System", (), {"label": label, "dial": "x"})()
            self.point = type("Point", (), {"system": system, "value": number, "split": "dev"})()
            self.records = (1,)

        def value(self, measure: Any) -> float:
            return figures[self.point.system.label, self.point.value][0 if measure.new else 1]

    found: Any = [Fake(*key) for key in figures]
    # best: the largest sum is .84 + .58. weak: 3 loses half a point and more of it, 2 does not. lost: nothing keeps, so the best keeper.
    assert choosing.choose(found) == {"best": 2, "weak": 2, "lost": 2}
    limits = list(_limits(found, choosing.choose(found)))
    # Rows only keep .53 at most. best, longer rows: of its dials that keep as much, 2 and 4, the one that learns more.
    figures |= {("Rows only", 1): (0.77, 0.53), ("Rows only", 2): (0.81, 0.40), ("best", 4): (0.85, 0.53)}
    figures |= {("best, longer rows", number): figures["best", number] for number in (1, 2, 3, 4)}
    chosen = choosing.choose([Fake(*key) for key in figures])  # type: ignore[misc]
    assert chosen == {"best": 2, "weak": 2, "lost": 2, "Rows only": 1, "best, longer rows": 4}
    # Where rows only keep as much as best, there is nothing to give up for it.
    figures["Rows only", 1] = (0.77, 0.60)
    assert choosing.choose([Fake(*key) for key in figures])["best, longer rows"] == 2  # type: ignore[misc]
    assert len(limits) == 2 and limits[0].endswith("better: “lost”")  # the others' choices lie between values tried
    assert "57.50 of D0" in limits[1] and limits[1].endswith(": “lost”")


def test_keywords_say_what_differs_from_the_defaults() -> None:
    assert keywords("rows", {"add_epochs": 10, "seed": 0}) == {}
    assert keywords("rows", {"preset": "best"}, {"add_epochs": 7})["add_epochs"] == 7
    assert keywords("rows", {"add_epochs": 7}, {"add_epochs": 10}) == {}  # the later is stronger, back to the default
    assert keywords("promptdsi", {"stand_in_range": (0.5, 0.9)}) == {}
    assert keywords("promptdsi", {"prompts": "l2p", "prompt_options": {"prompt_layers": [2]}}) == {"prompts": "l2p"}
    assert keywords("promptdsi", {"prompt_options": {"prompt_layers": [3]}}) == {"prompt_options": {"prompt_layers": [3]}}
    with pytest.raises(UsageError, match="rows has no option 'colour'"):
        keywords("rows", {"colour": 1})
    with pytest.raises(UsageError, match="no method 'magic'; there are bm25"):
        keywords("magic", {})
    with pytest.raises(UsageError, match="no preset 'better'"):
        keywords("rows", {"preset": "better"})


def test_ranks_are_written_and_read_back(corpora: list[Corpus]) -> None:
    from promptdsi.evaluation.metrics import QueryRanks

    query_ranks = [QueryRanks([3], [1.0]), QueryRanks([1, 7], [2.0, 1.0]), QueryRanks([5], [2.0])]
    assert unpack(json.loads(json.dumps(pack(query_ranks)))) == query_ranks
    assert pack(query_ranks)[0] == 3
