"""Reports and time estimates, from records made up with seeded ranks: what is printed equals what the ranks say, computed here again."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import EXPERIMENTS as OURS
from studies import copy_reports, made_up_d0, made_up_run, our_module, report_text

from promptdsi.bench.plan import Experiment, read_experiment
from promptdsi.bench.report import as_json, report_parts, write_report
from promptdsi.bench.run_records import D0, Run
from promptdsi.bench.runs import RunStore, matrix_of
from promptdsi.bench.system_results import collect_results, on_d0, on_new
from promptdsi.bench.tables import LATEX
from promptdsi.bench.time_estimate import A100, CPU, Timing, plan_rows
from promptdsi.errors import PromptDSIError

MAIN = """
title = "Main results"
report = "main"
paper = "Tables 2 and 3"
system = [
  { label = "BM25", group = "References", method = "bm25", seeds = [0] },
  { label = "Dense", group = "References", method = "dense", seeds = [0] },
  { label = "Multi", group = "References", method = "multi", seeds = [0] },
  { label = "Sequential", group = "Continual methods", method = "sequential" },
  { label = "DSI++", group = "Continual methods", method = "dsi++" },
  { label = "IncDSI", group = "Continual methods", method = "incdsi", search = 3 },
  { label = "Rows only", group = "PromptDSI with", method = "rows" },
  { label = "L2P", group = "PromptDSI with", method = "promptdsi", prompts = "l2p" },
  { label = "CODA", group = "PromptDSI with", method = "promptdsi", prompts = "coda" },
  { label = "Topic", group = "PromptDSI with", method = "promptdsi", prompts = "topic" },
]
"""
EXPERIMENTS = {
    "main": MAIN,
    "datasets": 'report = "datasets"',
    "curves": 'report = "curves"\nsystems_of = "main"\nlabels = ["Multi", "IncDSI", "L2P"]',
    "utilisation": 'report = "utilisation"\nsystems_of = "main"\nlabels = ["L2P", "CODA", "Topic"]',
    "topics": 'report = "topics"\nsystems_of = "main"\nlabels = ["Topic"]',
    "memory": 'report = "memory"\nsystems_of = "main"',
    "passes": """
report = "passes"
system = [
  { label = "L2P", group = "one", method = "promptdsi", prompts = "l2p" },
  { label = "L2P, two passes", group = "two", method = "promptdsi", prompts = "l2p", selection = "two-pass", seeds = [0] },
]""",
    "layers": """
report = "layers"
seeds = [0]
system = [
  { label = "S++", method = "promptdsi", parameter = "prompt_options.prompt_layers", sweep = [[1], [2], [3], [1, 2], [2, 3], [1, 2, 3]] },
  { label = "IncDSI", method = "incdsi", search = 3, reference = true },
]""",
    "ablations": """
report = "ablations"
seeds = [0]
system = [
  { label = "S++", group = "S++", method = "promptdsi" },
  { label = "50 % & less_", group = "S++", method = "promptdsi", rows = { softmax_scope = "new_only" } },
  { label = "Rows only", group = "Rows only", method = "rows" },
]""",
    "choosing": """
report = "choosing"
split = "dev"
system = [
  { label = "best", group = "Ours", method = "rows", preset = "rows", parameter = "rows.row_norm_scale", sweep = [0.9, 1.0], seeds = [0] },
  { label = "S++", method = "promptdsi", parameter = "add.row_lr", sweep = [1e-3, 1e-2], seeds = [0] },
]""",
    "frontier": 'report = "frontier"\nsystems_of = "choosing"',
    "words": """
report = "words"
seeds = [0]
system = [
  { label = "BM25 with train queries", group = "References", method = "bm25", train_queries = true, settings = ["one"] },
  { label = "best", group = "Rows alone", method = "rows", settings = ["one"] },
  { label = "best", group = "Words and rows", method = "rows", preset = "best", settings = ["words"] },
]""",
}
SCALE = """
[setting.one]
label = "MiniLM"
stream = { source = "made", limit = 300, new = 2, share = 0.1 }
d0 = { fit = { epochs = 2 } }
seeds = [0, 1]
[setting.words]
label = "MiniLM, words"
stream = { source = "made", limit = 300, new = 2, share = 0.1 }
d0 = { preset = "best" }
[setting.two]
label = "another stream"
stream = { source = "made", limit = 300, new = 2, share = 0.1, seed = 1 }
d0 = { fit = { epochs = 2 } }
only = ["best"]
[run]
"""


# D0 H@10 of Topic as the paper prints it.
PAPER_D0 = {"NQ320k, BERT": "86.0", "MS MARCO 300k, BERT": "80.4", "NQ320k, SBERT": "86.8", "MS MARCO 300k, SBERT": "81.3"}


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Experiment], RunStore]:
    """Every kind of experiment, with all its runs."""
    folder = tmp_path_factory.mktemp("bench") / "experiments"
    (folder / "scales").mkdir(parents=True)
    copy_reports(folder)
    where = dict.fromkeys(EXPERIMENTS, '["one"]') | {"frontier": '["one", "two"]', "words": '["one", "words"]'}
    (folder / "scales" / "tiny.toml").write_text(SCALE + "\n".join(f"{name} = {settings}" for name, settings in where.items()))
    for name, text in EXPERIMENTS.items():
        (folder / f"{name}.toml").write_text(text)
    experiments = {name: read_experiment(folder / f"{name}.toml", "tiny") for name in EXPERIMENTS}
    store = RunStore(folder / "results")
    for experiment in experiments.values():
        for run in experiment.runs:
            store.write(made_up_run(run))
        for setting in experiment.settings:
            store.write(made_up_d0(setting.d0))
    return experiments, store


def attached(fakes: tuple[dict[str, Experiment], RunStore], name: str, title: str) -> dict[str, list[str]]:
    """A table of a report's .json by the start of its title: the first column, then the others."""
    experiments, store = fakes
    results = collect_results(experiments[name], store)
    tables = json.loads(as_json(results, report_parts(experiments[name], results)))["tables"]
    return {row[0]: row[1:] for row in next(table for table in tables if table["title"].startswith(title))["rows"]}


def table_of(text: str, title: str) -> dict[str, list[str]]:
    """A Markdown table by its title: the first column, then the others."""
    table = text.split(f"**{title}")[1].split("\n\n")[1]
    rows = [[entry.strip() for entry in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def bare(text: str) -> float:
    return float(re.sub(r"\*\*|</?ins>| ±.*", "", text).replace("−", "-"))


def written(fakes: tuple[dict[str, Experiment], RunStore], name: str) -> str:
    return report_text(fakes[0][name], fakes[1])


def test_every_kind_has_an_experiment_here() -> None:
    assert {path.stem for path in (OURS / "reports").glob("*.py")} == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_report_is_whole_and_the_same_bytes_twice(fakes: tuple[dict[str, Experiment], RunStore], name: str) -> None:
    experiments, store = fakes
    files = write_report(experiments[name], store)
    before = {file: file.read_bytes() for file in files}
    assert {file: file.read_bytes() for file in write_report(experiments[name], store)} == before
    assert [file.name for file in files[:2]] == [f"{name}.md", f"{name}.tex"]
    assert all(file.parent == store.folder / "tiny" and file.stat().st_size for file in files)
    assert {file.suffix for file in files[2:]} == {".json", ".png", ".svg"}
    text, tex = (file.read_text("utf-8") for file in files[:2])
    assert "**Tested:** n = 40 " in text and "<ins>" not in text  # so few queries rank nothing
    assert json.loads(files[2].read_text("utf-8"))["tables"]
    assert f"promptdsi bench run experiments/{name}.toml --scale tiny" in text and "`f00df00df00d`" in text and "not run yet" not in text
    assert name == "datasets" or "code: beef" in text
    for picture in re.findall(r"!\[.*\]\((.*)\)", text):
        assert (store.folder / "tiny" / picture).is_file()
    provenance = text[text.index("## Hyper-parameters") :]  # a table keeps it when it goes into a paper
    assert [line for line in provenance.splitlines() if line.startswith("- ")] == re.findall("^% (- .*)$", tex, re.M)
    tex = re.sub("^%.*$", "", tex, flags=re.M)
    assert tex.count(r"\begin{") == tex.count(r"\end{") and tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")
    assert not set(tex) & {sign for sign in LATEX if not sign.isascii()}


def test_the_main_table_says_what_the_ranks_say(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    experiments, store = fakes
    text = written(fakes, "main")
    table = table_of(text, "MiniLM: after the last corpus")
    for label in ("Multi", "DSI++", "Topic"):
        records = [store.run(run) for run in experiments["main"].runs if run.label == label]
        last = [[np.array(corpus) for corpus in record.ranks["test"]["2"]] for record in records if record]
        d0 = [100 * (run[0] <= 10).mean() for run in last]
        new = [100 * np.mean([np.where(run[i] <= 10, 1 / run[i], 0).mean() for i in (1, 2)]) for run in last]
        assert bare(table[label][0]) == pytest.approx(np.mean(d0), abs=0.051)
        assert bare(table[label][4]) == pytest.approx(np.mean(new), abs=0.051)
        if len(d0) > 1:
            assert table[label][0].endswith(f"± {np.std(d0, ddof=1):.1f}")
        assert table[label][8:] == ["346 k", "✓" if label == "Topic" else "✗"]
    for over, first in (("D0", 0), ("A_T", 3)):
        control = attached(fakes, "main", f"MiniLM: {over} against “Rows only”")
        for place in (0, 1, 2):  # H@10, M@10, H@1
            difference, interval, _, verdict = control["L2P"][4 * place : 4 * place + 4]
            apart = bare(table["L2P"][first + place]) - bare(table["Rows only"][first + place])
            assert bare(difference) == pytest.approx(apart, abs=0.11)
            low, high = (float(end.replace("−", "-")) for end in interval.split(" to "))
            assert (verdict == "no difference shown") == (low <= 0 <= high)
    assert "Rows only" not in control and "Multi" not in control
    claims = table_of(text, "MiniLM: claims, in points of Hits@10")
    assert claims["IncDSI retains D0, within 2 points"][0] in ("holds", "not shown", "refuted")
    assert (
        claims["Every PromptDSI variant is better on new corpora than IncDSI"][0] == "cannot be tested in this regime"
    )  # of made-up steps
    d0, dense, apart = (re.search(rf"{words}[^.]*: Hits@1 ([^ ,]+)", text) for words in ("D0 before", "Dense retrieval", "The first minus"))
    assert d0 and dense and apart and bare(apart[1]) == pytest.approx(bare(d0[1]) - bare(dense[1]), abs=0.11)
    assert attached(fakes, "main", "MiniLM: published figures (BERT, NQ320k)")["L2P"][0::2] == ["86.1", "71.2", "90.8", "73.2"]
    assert attached(fakes, "main", "MiniLM: seconds to learn each corpus")["L2P"] == ["1.0", "60.0 (250)", "60.0 (250)"]


def test_published_figures_are_those_of_the_same_data(tmp_path: Path) -> None:
    experiment, store = read_experiment(OURS / "main.toml", "paper"), RunStore(tmp_path)
    for point in experiment.points:
        if point.label in ("DPR", "Topic"):
            store.write(made_up_run(point.runs[0]))
    fakes = {"main": experiment}, store
    published = {
        name: attached(fakes, "main", f"{name}: published figures ({name.split(', ')[1]}, {name.split(', ')[0]}) beside ours")
        for name in PAPER_D0
    }
    assert {name: table["Topic"][0] for name, table in published.items()} == PAPER_D0
    assert published["MS MARCO 300k, BERT"]["DPR"][0::2] == ["68.8", "–", "62.8", "–"] and "DPR" not in published["MS MARCO 300k, SBERT"]


def test_curves_leave_out_what_learns_at_once(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    experiments, store = fakes
    text = written(fakes, "curves")
    assert "learn all new corpora at once: Multi" in text
    table = table_of(text, "MiniLM: F_t (forgetting), Hits@10")
    assert table["Multi"] == ["–", "–"]
    runs = [matrix_of(record, "test") for run in experiments["curves"].runs if run.label == "IncDSI" and (record := store.run(run))]
    point = [[[(np.array([q.ranks[0] for q in corpus]) <= 10).mean() for corpus in run.query_ranks[t]] for t in range(3)] for run in runs]
    forgot = np.mean([((max(p[0][0], p[1][0]) - p[2][0]) + (p[1][1] - p[2][1])) / 2 for p in point])
    assert bare(table["IncDSI"][1].split(" (")[0]) == pytest.approx(100 * forgot, abs=0.051)


def test_passes_are_compared_at_the_seeds_both_have(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    experiments, store = fakes
    one_pass, two_passes = ([run for run in experiments["passes"].runs if run.label == label] for label in ("L2P", "L2P, two passes"))
    assert len(one_pass) > len(two_passes) == 1 and one_pass[0].seed == two_passes[0].seed
    ends = [matrix_of(record, "test").average("Hits@10")[0] for run in (one_pass[0], two_passes[0]) if (record := store.run(run))]
    shown = table_of(written(fakes, "passes"), "MiniLM: differences")
    assert bare(shown["A_T H@10"][0]) == pytest.approx(100 * (ends[0] - ends[1]), abs=0.051)


def test_the_other_reports_count_right(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    sizes = table_of(written(fakes, "datasets"), "MiniLM: sizes of stream made")
    assert sizes["total"] == ["303", "21", "95", "95", "up to 15 per document"] and sizes["tune"][0] == "5"
    passes = table_of(written(fakes, "passes"), "MiniLM: one pass and two")
    assert passes["L2P"][-1] == passes["L2P, two passes"][-1] == "0"  # the seed both have
    used = written(fakes, "utilisation")
    assert "Prompts are not selected one by one: CODA." in used
    assert "word110, word111" in written(fakes, "topics") and "who \\| asks?" in written(fakes, "topics")
    memory = written(fakes, "memory")
    assert table_of(memory, "MiniLM: stored beside")["L2P"] == ["315.0 KiB", "322,560", "1,064.6", "346 k"]
    assert [round(entry.bytes / 2**10, 1) for entry in our_module("reports.memory").SUMS[:1]] == [315.0]
    assert [round(entry.bytes / 2**20, 3) for entry in our_module("reports.memory").SUMS[1:4]] == [11.874, 318.214, 877.219]
    changed = table_of(written(fakes, "ablations"), "MiniLM: one thing changed")
    half = changed["50 % & less\\_"]
    assert bare(half[1].strip("\\*")) == pytest.approx(bare(half[0]) - bare(changed["S++"][0]), abs=0.11)
    collected = collect_results(fakes[0]["ablations"], fakes[1])
    system, base = (next(system for system in collected.all if system.label == label) for label in ("50 % & less_", "S++"))
    for place, measure in enumerate((on_d0("Hits@1"), on_d0("Hits@10"), on_new("Hits@10"))):
        compared = system.against(base, measure)
        assert compared is not None
        assert half[4 * place + 3] == ("\\<0.001" if compared.p < 0.001 else f"{compared.p:.3f}")


def test_every_figure_of_a_layer_has_its_interval(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    table = table_of(written(fakes, "layers"), "MiniLM: one prompted layer")
    for label in ("3", "IncDSI"):
        for figure, interval in zip(table[label][0::2], table[label][1::2], strict=True):
            low, high = (float(end.replace("−", "-")) for end in interval.split(" to "))
            assert low < bare(figure) < high


def test_windows_of_layers_change_in_per_cent_of_the_single_layer(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    experiments, store = fakes
    layers = our_module("reports.layers")
    tried = layers.by_system(collect_results(experiments["layers"], store).of(experiments["layers"].settings[0]))["S++"]
    single, both = (next(result for result in tried if layers.layers_of(result) == numbers) for numbers in ([1], [1, 2]))
    changed, base, value = layers.change(both, single, layers.D0_MRR), single.value(layers.D0_MRR), both.value(layers.D0_MRR)
    assert changed.value == pytest.approx(value / base - 1) and changed.low < changed.value < changed.high


def test_layers_are_chosen_by_the_criteria(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    experiments, store = fakes
    layers = our_module("reports.layers")
    systems = collect_results(experiments["layers"], store).of(experiments["layers"].settings[0])
    chosen = layers.choose([system for system in systems if layers.layers_of(system)])
    assert chosen is not None and len(layers.layers_of(chosen)) == 1  # random ranks: nothing is shown worse, fewer layers win
    assert f"S++: layer {layers.layers_of(chosen)[0]}" in written(fakes, "layers")
    assert layers.choose([]) is None


def test_the_frontier_says_stream_by_stream_how_ours_differs_from_each(fakes: tuple[dict[str, Experiment], RunStore]) -> None:
    experiments, store = fakes
    collected = collect_results(experiments["frontier"], store)
    text = report_text(experiments["frontier"], store)
    table = table_of(text, "best minus each: A_T H@10 in points")
    first = {system.point.label: system for system in collected.of(collected.experiment.settings[0])}
    # Each label once: where a system has several values, as nothing chose here, the last stands for it.
    ours, theirs = first["best 1.0"], first["S++ 0.01"]
    compared = ours.against(theirs, on_new("Hits@10"))
    assert compared is not None and table["S++"][0].startswith(f"{our_module('shared').signed(compared.difference.value)} (")
    assert table["S++"][1] == "–"  # the other stream runs `best` alone
    summary = next(line for line in text.splitlines() if line.startswith(f"- {collected.experiment.settings[0].label}: A_T H@10"))
    new, retained = summary.split(". D0 H@1 ")
    words = {"better": "better than", "worse": "worse than", "no difference shown": "no difference shown to"}
    for part, measure in ((new, on_new("Hits@10")), (retained, on_d0("Hits@1"))):
        compared = first["best 0.9"].against(theirs, measure)
        assert compared is not None and re.search(rf"{words[compared.verdict]} [^;]*S\+\+", part)
    assert "best, larger row norm" not in text


def test_what_is_missing_is_shown_and_listed(fakes: tuple[dict[str, Experiment], RunStore], tmp_path: Path) -> None:
    experiments, store = fakes
    shutil.copytree(store.folder / "runs", tmp_path / "runs")
    fewer = RunStore(tmp_path)
    missing_runs = [run for run in experiments["main"].runs if run.label == "L2P" or (run.label == "CODA" and run.seed == 1)]
    for run in missing_runs:
        fewer.path(run.file).unlink()
    text = write_report(experiments["main"], fewer)[0].read_text("utf-8")
    assert table_of(text, "MiniLM: after the last corpus")["L2P"] == ["–"] * 10
    assert "±" not in table_of(text, "MiniLM: after the last corpus")["CODA"][0]
    assert "not run yet: MiniLM: L2P, seed 0; MiniLM: L2P, seed 1; MiniLM: CODA, seed 1" in text
    for name in ("curves", "utilisation", "passes", "memory"):
        assert "–" in report_text(experiments[name], fewer)
    with pytest.raises(PromptDSIError, match=r"promptdsi bench run experiments/main\.toml --scale tiny --results \S+/empty runs it"):
        write_report(experiments["main"], RunStore(tmp_path / "empty"))
    record = fewer.run(experiments["main"].runs[0])
    assert record is not None
    record.data.queries["test"][0] = "other"
    fewer.write(record)
    with pytest.raises(PromptDSIError, match="different queries"):
        write_report(experiments["main"], fewer)


def test_a_missing_matplotlib_is_named(fakes: tuple[dict[str, Experiment], RunStore], monkeypatch: pytest.MonkeyPatch) -> None:
    experiments, store = fakes
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PromptDSIError, match=re.escape("pip install 'promptdsi[bench]'")):
        write_report(experiments["curves"], store)


def test_hours_know_how_large_a_whole_source_is(tmp_path: Path) -> None:
    def work(**stream: Any) -> float:
        return Timing(RunStore(tmp_path)).work(D0({"source": "squadx", "new": 5, "share": 0.06} | stream, {}))

    assert work() / work(limit=3000) == pytest.approx(9_725 / 3000, rel=0.01)
    assert work(source="msmarco300k") > 30 * work()


def test_hours_of_a_gpu_are_not_those_of_this_machine(tmp_path: Path) -> None:
    paper = read_experiment(OURS / "main.toml", "paper")
    cpu, gpu = ({row.what: row.seconds / 3600 for row in plan_rows([paper], RunStore(tmp_path), machine)} for machine in (CPU, A100))
    assert all(gpu[what] < cpu[what] / 100 for what in cpu if what.endswith((": D0", "Sequential", "S++", "DPR")))
    assert 1 < gpu["NQ320k, BERT: D0"] < 4 and 4 < gpu["MS MARCO 300k, BERT: D0"] < 12  # docs/research.md has it by hand
    assert gpu["NQ320k, BERT: BM25"] == cpu["NQ320k, BERT: BM25"]
    assert 1 < gpu["NQ320k, BERT: pseudo-queries"] < 5 and "NQ320k, SBERT: pseudo-queries" not in gpu  # one stream for both


def test_hours_of_what_is_missing(fakes: tuple[dict[str, Experiment], RunStore], tmp_path: Path) -> None:
    experiments, store = fakes
    both = [experiments["main"], experiments["passes"]]
    complete = plan_rows(both, store)
    assert all(row.missing == 0 and row.seconds == 0 for row in complete)
    assert sum(row.runs for row in complete) == 1 + len({run.key for experiment in both for run in experiment.runs})
    shutil.copytree(store.folder / "runs", tmp_path / "runs")
    fewer = RunStore(tmp_path)
    for run in experiments["main"].runs + experiments["passes"].runs:
        if run.label in ("L2P, two passes", "Sequential") or (run.label == "L2P" and run.seed == 1):
            fewer.path(run.file).unlink(missing_ok=True)
    rows = {row.what: row for row in plan_rows(both, fewer)}
    assert rows["MiniLM: L2P"] == ("MiniLM: L2P", 2, 1, 121.0, "measured")
    assert rows["MiniLM: L2P, two passes"].source == "like promptdsi l2p here, scaled"
    assert rows["MiniLM: Sequential"].source == "guess" and rows["MiniLM: Sequential"].seconds > 0
    reference = next(run for run in experiments["main"].runs if run.label == "L2P" and run.seed == 0)  # ten epochs, 121 s
    longer = Run(reference.d0, reference.method, reference.params | {"add.epochs": 60}, 0)
    assert Timing(fewer).guess(longer) == (pytest.approx(6 * 121), "like promptdsi l2p here, scaled")
    other = Run(D0({"source": "made", "limit": 600}, {}), "dsi++", {}, 0)
    assert Timing(fewer).guess(other).source == "like dsi++ elsewhere, scaled"
    nothing = plan_rows([experiments["main"]], RunStore(tmp_path / "empty"))
    assert nothing[0].missing == 1 and {row.source for row in nothing} == {"guess"}
