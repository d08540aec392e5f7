"""Experiments: TOML to runs, runs to records, resumed and rebuilt; and choices that never see a test query."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from studies import our_module, small_study

from promptdsi import Corpus
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.report import write_report
from promptdsi.bench.run_records import D0Record, RunRecord, changed_params
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore, matrix_of, pack_ranks, unpack_ranks
from promptdsi.bench.system_results import collect_results
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.evaluation.evaluate import load_queries, rank_queries
from promptdsi.methods.incdsi import IncDSI
from promptdsi.methods.rows_only import RowsOnly

TOPIC = """
[[system]]
label = "Topic"
method = "promptdsi"
prompts = "topic"
parameter = "add.row_lr"
sweep = [1e-4, 1e-2]
"""


@pytest.fixture
def folder(tmp_path: Path, backbone: str) -> Path:
    return small_study(tmp_path, backbone)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


def test_an_experiment_writes_one_file_per_run_and_continues_where_it_stopped(folder: Path, store: RunStore) -> None:
    experiment = read_experiment(folder / "both.toml", "small")
    runs = experiment.runs
    assert len(runs) == 5 and len({run.file for run in runs}) == 5
    runner = Runner(store, offline=True)
    assert [path.stem for path in runner.run(runs[:2])] == [run.file for run in runs[:2]]
    before = store.path(runs[0].file).read_bytes()
    notes: list[str] = []
    written = Runner(store, offline=True, notify=notes.append).run(runs)
    assert [path.stem for path in written] == [run.file for run in runs[2:]]
    assert store.path(runs[0].file).read_bytes() == before
    assert not any("learning D0" in line for line in notes)  # one checkpoint serves all
    assert Runner(store, offline=True).run(runs) == []
    again = Runner(store, offline=True).run(runs[:1], fresh=True)
    assert json.loads(again[0].read_text())["ranks"] == json.loads(before)["ranks"]  # the same seed, the same ranks
    assert Runner(store, offline=True).run(runs[:1], fresh=True, until=0.0) == []


def test_a_run_made_again_is_compared_with_the_recorded_one(folder: Path, store: RunStore) -> None:
    run = read_experiment(folder / "both.toml", "small").runs[0]
    notes: list[str] = []
    runner = Runner(store, offline=True, notify=notes.append)
    runner.run([run])
    runner.run([run], fresh=True)
    assert notes[-1].startswith("run again: 0 of ")
    record = store.run(run)
    assert record is not None

    def again_after(change: Callable[[RunRecord], object]) -> str:
        change(record)
        store.write(record)
        runner.run([run], fresh=True)
        return notes[-1]

    def one_other_rank(record: RunRecord) -> None:
        record.ranks["test"]["0"][0][0] = 3 + cast("int", record.ranks["test"]["0"][0][0])

    def evaluated_on_dev_too(record: RunRecord) -> None:  # as early runs were
        record.ranks["dev"], record.data.queries["dev"] = record.ranks["test"], record.data.queries["test"]

    queries = sum(len(corpus) for step in record.ranks["test"].values() for corpus in step)
    assert again_after(one_other_rank) == f"run again: 1 of {queries:,} ranks differ from the recorded ones"
    assert again_after(evaluated_on_dev_too) == f"run again: 1 of {queries:,} ranks differ from the recorded ones"
    del record.ranks["dev"], record.data.queries["dev"]
    other = record.data.queries["test"][0]
    record.data.queries["test"][0] = "other"
    store.write(record)
    runner.run([run], fresh=True)
    assert notes[-1] == "run again: the recorded run was evaluated on other queries" and other != "other"
    store.path(run.file).write_text("{")  # what cannot be read is replaced, not compared
    runner.run([run], fresh=True)
    assert notes[-1].endswith("; it is replaced") and store.run(run) is not None


def test_a_record_holds_the_ranks_a_user_would_see(folder: Path, store: RunStore) -> None:
    experiment = read_experiment(folder / "both.toml", "small")
    run = next(run for run in experiment.runs if run.label == "IncDSI")
    runner = Runner(store, offline=True)
    runner.run([run])
    record = store.run(run)
    assert record is not None and record.searched is not None
    stream = runner.stream(run.d0.stream, "test")
    d0, checksum = runner.d0(run.d0)
    method = IncDSI.from_params(run.params | record.searched.chosen | {"offline": True}).begin_from(d0, stream.corpora[0])
    for step, corpus in enumerate(stream.corpora):
        if step:
            method.add(corpus)
        for index in range(step + 1):
            expected = rank_queries(method, load_queries(stream.corpora[index], "test")).query_ranks
            assert unpack_ranks(record.ranks["test"][str(step)][index]) == expected
    assert record.d0_sha256 == checksum and record.trained_parameters == method.trained_parameters()
    assert [step.documents for step in record.steps] == [len(corpus) for corpus in stream.corpora[1:]]
    assert matrix_of(record, "test").last == 2
    assert record.rehearsal_free is False and record.extra_bytes == method.extra_bytes() > 0
    assert [size.corpus for size in record.data.sizes].count("tune") == 1


def test_runs_that_share_vectors_are_the_same_as_runs_made_alone(folder: Path, store: RunStore, tmp_path: Path) -> None:
    runs = read_experiment(folder / "both.toml", "small").runs
    runner = Runner(store, offline=True)
    runner.run(runs)
    assert runner._cache[1].seconds_saved > 0
    for number, run in enumerate(runs):
        alone = RunStore(tmp_path / f"alone-{number}")
        Runner(alone, offline=True).run([run])
        shared, single = store.run(run), alone.run(run)
        assert shared is not None and single is not None
        assert (shared.ranks, shared.d0_sha256, shared.searched) == (single.ranks, single.d0_sha256, single.searched)


def test_topic_runs_share_the_documents_and_topics_of_d0(folder: Path, store: RunStore, tmp_path: Path) -> None:
    text = (folder / "both.toml").read_text()
    (folder / "both.toml").write_text(text[: text.index("[[system]]")] + TOPIC)
    runs = read_experiment(folder / "both.toml", "small").runs
    runner = Runner(store, offline=True)
    runner.run(runs)
    kinds = [key.split()[0] for key in runner._cache[1].results]
    assert len(runs) == 2 and kinds.count("topics") == kinds.count("documents") == 1
    alone = RunStore(tmp_path / "alone")
    Runner(alone, offline=True).run(runs[1:])
    shared, single = store.run(runs[1]), alone.run(runs[1])
    assert shared is not None and single is not None and shared.topics is not None
    assert (shared.ranks, shared.topics) == (single.ranks, single.topics)


def test_a_stream_may_name_the_generator_of_its_pseudo_queries(store: RunStore) -> None:
    spec = {"source": "demo", "limit": 20, "new": 1, "share": 0.2, "pseudo": {"generator": "spans", "per_document": 3, "seed": 5}}
    stream = Runner(store, offline=True).stream(spec, "dev")
    plain = Runner(store, offline=True).stream({key: value for key, value in spec.items() if key != "pseudo"}, "dev")
    for corpus, before in zip(stream.corpora, plain.corpora, strict=True):
        written = corpus.pairs("train", kinds=("pseudo",))
        assert corpus.documents == before.documents and not before.pairs("train", kinds=("pseudo",))
        assert {pair.docid for pair in written} == {document.docid for document in corpus.documents}
        assert 0 < len(written) <= 3 * len(corpus)
    with pytest.raises(UsageError, match="no generator"):
        Runner(store, offline=True).stream(spec | {"pseudo": {"generator": "missing"}}, "dev")


def test_a_missing_checkpoint_is_learned_again_and_compared(folder: Path, store: RunStore) -> None:
    setting = read_experiment(folder / "both.toml", "small").settings[0]
    _, checksum = Runner(store, offline=True).d0(setting.d0)
    shutil.rmtree(store.work / setting.d0.file)
    notes: list[str] = []
    second, again = Runner(store, offline=True, notify=notes.append).d0(setting.d0)
    assert again == checksum and isinstance(second, RowsOnly)
    assert notes[-1].startswith("D0 was learned again: the same weights; 0 of ")
    record = store.d0(setting.d0)
    assert record is not None and record.sha256 == checksum and set(record.ranks) == {"dev"}

    def learned_again_after(change: Callable[[D0Record], object]) -> None:
        change(record)
        store.write(record)
        shutil.rmtree(store.work / setting.d0.file)
        Runner(store, offline=True, notify=notes.append).d0(setting.d0)

    def other_rank_and_weights(record: D0Record) -> None:
        record.ranks["dev"]["0"][0][0] = 3 + cast("int", record.ranks["dev"]["0"][0][0])
        record.sha256 = "0" * 64

    learned_again_after(other_rank_and_weights)
    assert notes[-1].startswith("D0 was learned again: other weights; 1 of ")
    with pytest.raises(PromptDSIError, match="was made from other data"):
        learned_again_after(lambda record: record.data.queries["dev"].__setitem__(0, "other"))


WATCHED = """
import json, sys
from pathlib import Path
opened = []
def hook(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
sys.addaudithook(hook)
from promptdsi.bench.plan import read_experiment
from promptdsi.bench.report import write_report
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore
folder, place, work = map(Path, sys.argv[1:])
experiment, store = read_experiment(folder / "choose.toml", "small"), RunStore(place, work)
Runner(store, offline=True).run(experiment.runs)
write_report(experiment, store)
print(json.dumps(opened))
"""


def test_choosing_never_opens_a_test_query(folder: Path, store: RunStore) -> None:
    """From D0 to the chosen parameters: not one qrels/test.tsv is opened, and deleting them all changes nothing.

    Watched in a process of its own: an audit hook stays for good, and with one threads that start together under coverage can fail.
    """
    experiment = read_experiment(folder / "choose.toml", "small")
    Runner(store, offline=True).stream(experiment.settings[0].d0.stream, "dev")  # written once, with all its files
    tests = list(store.work.rglob("test.tsv"))
    assert len(tests) >= 3
    words = [sys.executable, "-c", WATCHED, *map(str, (folder, store.folder, store.work))]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    opened = json.loads(ended.stdout)
    assert [name for name in opened if name.endswith("dev.tsv")] and not [name for name in opened if name.endswith("test.tsv")]
    assert all("test" not in json.loads(path.read_text())["ranks"] for path in (store.folder / "runs").glob("*.json"))
    chosen = store.choices("small", "choose")
    for path in tests:
        path.unlink()
    other = RunStore(store.folder.parent / "blind", store.work)
    Runner(other, offline=True).run(experiment.runs)
    write_report(experiment, other)
    assert other.choices("small", "choose") == chosen


def test_what_was_chosen_is_what_is_evaluated_on_the_test_split(folder: Path, store: RunStore) -> None:
    with pytest.raises(DataError, match=r"run and report choose\.toml first"):
        read_experiment(folder / "frontier.toml", "small", store)
    choose = read_experiment(folder / "choose.toml", "small")
    Runner(store, offline=True).run(choose.runs)
    write_report(choose, store)
    path = store.folder / "small/choose.json"
    content = path.read_text()
    path.write_text(json.dumps({"chosen": {"best": 0.9}}))
    with pytest.raises(DataError, match="'S\\+\\+' has no chosen parameter yet"):  # else all its values would be tested
        read_experiment(folder / "frontier.toml", "small", store)
    path.write_text(content)
    frontier = read_experiment(folder / "frontier.toml", "small", store)
    chosen = store.choices("small", "choose")
    assert {point.system.label: point.value for point in frontier.points} == {"IncDSI": None, **chosen}
    Runner(store, offline=True).run(frontier.runs)
    written = write_report(frontier, store)
    text = written[0].read_text()
    against = text.split("best minus each: ")[1]
    assert "| S++ |" in against and "| IncDSI |" in against
    with pytest.raises(PromptDSIError, match="parameters are chosen on the dev split"):
        our_module("selection_rule").choose(collect_results(frontier, store).all)


def test_a_search_without_documents_to_search_on_is_refused_before_anything_runs(folder: Path, store: RunStore) -> None:
    scale = folder / "scales/small.toml"
    scale.write_text(scale.read_text().replace(", tune = 5", ""))
    runs = read_experiment(folder / "both.toml", "small").runs
    with pytest.raises(PromptDSIError, match="no tune documents"):
        Runner(store, offline=True).run(runs)
    assert not list(store.folder.glob("runs/*.json"))


def test_the_rule_of_choosing() -> None:
    selection_rule, limits_of = our_module("selection_rule"), our_module("reports.choosing")._limits
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
            system = type("System", (), {"label": label, "parameter": "x"})()
            self.point = type("Point", (), {"system": system, "value": number, "split": "dev"})()
            self.records = (1,)

        def value(self, measure: Any) -> float:
            return figures[self.point.system.label, self.point.value][0 if measure.new else 1]

    systems: Any = [Fake(*key) for key in figures]
    # best: the largest sum is .84 + .58. weak: 3 loses half a point and more of it, 2 does not. lost: none retains, so the best.
    assert selection_rule.choose(systems) == {"best": 2, "weak": 2, "lost": 2}
    limits = list(limits_of(systems, selection_rule.choose(systems)))
    # Rows only keep .53 at most. best, larger row norm: of its values that retain as much, 2 and 4, the one that learns more.
    figures |= {("Rows only", 1): (0.77, 0.53), ("Rows only", 2): (0.81, 0.40), ("best", 4): (0.85, 0.53)}
    figures |= {("best, larger row norm", number): figures["best", number] for number in (1, 2, 3, 4)}
    chosen = selection_rule.choose([Fake(*key) for key in figures])
    assert chosen == {"best": 2, "weak": 2, "lost": 2, "Rows only": 1, "best, larger row norm": 4}
    # Where rows only keep as much as best, there is nothing to give up for it.
    figures["Rows only", 1] = (0.77, 0.60)
    assert selection_rule.choose([Fake(*key) for key in figures])["best, larger row norm"] == 2
    assert len(limits) == 2 and limits[0].endswith("better: “lost”")  # the others' choices lie between values tried
    assert "57.50 of D0" in limits[1] and limits[1].endswith(": “lost”")


def test_parameters_of_a_run_are_those_that_differ_from_the_defaults() -> None:
    assert changed_params("rows", {"add": {"epochs": 10}, "seed": 0}) == {}
    assert changed_params("rows", {"preset": "best"}, {"add.epochs": 7})["add.epochs"] == 7
    assert changed_params("rows", {"add": {"epochs": 7}}, {"add": {"epochs": 10}}) == {}  # the later is stronger, back to the default
    assert changed_params("rows", {"add_epochs": 7}) == {"add.epochs": 7}  # as files of release 0.1 name it
    assert changed_params("promptdsi", {"prompts": "l2p", "prompt_options": {"prompt_layers": [2]}}) == {"prompts": "l2p"}
    assert changed_params("promptdsi", {"prompt_options": {"prompt_layers": [3]}}) == {"prompt_options": {"prompt_layers": [3]}}
    both = changed_params("promptdsi", {"prompt_options": {"center": True}}, {"prompt_options.prompt_layers": [3]})
    assert both == {"prompt_options": {"center": True, "prompt_layers": [3]}}  # a swept option joins the others
    with pytest.raises(UsageError, match="rows has no option 'color'"):
        changed_params("rows", {"color": 1})
    with pytest.raises(UsageError, match="no method 'magic'; there are analytic, bm25"):
        changed_params("magic", {})
    with pytest.raises(UsageError, match="no preset 'better'"):
        changed_params("rows", {"preset": "better"})


def test_ranks_are_written_and_read_back(corpora: list[Corpus]) -> None:
    from promptdsi.evaluation.evaluate import QueryRanks

    query_ranks = [QueryRanks([3], [1.0]), QueryRanks([1, 7], [2.0, 1.0]), QueryRanks([5], [2.0])]
    assert unpack_ranks(json.loads(json.dumps(pack_ranks(query_ranks)))) == query_ranks
    assert pack_ranks(query_ranks)[0] == 3
