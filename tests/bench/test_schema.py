"""Experiment files, scales, records and checkpoints: what does not fit is one sentence that names the file and the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from studies import SYSTEMS, small_study

from promptdsi.bench.plan import read_experiment
from promptdsi.bench.report import write_report
from promptdsi.bench.runner import Runner
from promptdsi.bench.runs import RunStore
from promptdsi.errors import DataError, PromptDSIError, UsageError


@pytest.fixture
def folder(tmp_path: Path, backbone: str) -> Path:
    return small_study(tmp_path, backbone)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "results")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title", "titel"), "has an unknown key 'titel'; known are about, "),
        (('label = "best"\n', ""), r"has no 'system\.0\.label'"),
        (('parameter = "rows.row_norm_scale"\n', ""), "'best': parameter and sweep come together"),
        (('method = "incdsi"', 'method = "ink"'), "system 'IncDSI': no method 'ink'"),
        (('prompts = "s++"', 'promts = "s++"'), "no option 'promts'"),
        (('title = "Small"', 'title = Small"'), "is no TOML file"),
        (('report = "choosing"\n', ""), "has no 'report'"),
        (('split = "dev"', 'split = "train"'), "split: Input should be 'dev' or 'test'"),
        (('split = "dev"', "seeds = 3"), "seeds: Input should be a valid list"),
        (('split = "dev"', 'seeds = ["0"]'), r"seeds\.0: Input should be a valid integer"),
        (("sweep = [0.9, 1.0]", 'sweep = ["long"]'), "system 'best': rows: rows.row_norm_scale='long': expected a number, such as 1.0"),
        (('prompts = "s++"', 'prompts = "s--"'), "system 'S\\+\\+': no prompt strategy 's--'"),
        (('prompts = "s++"', "prompt_options = { layers = 2 }"), "system 'S\\+\\+': prompt strategy s\\+\\+"),
        (('prompts = "s++"', 'selection = "triple"'), "selection='triple' is none of single, "),
        (('method = "incdsi"', 'method = "rows"'), "system 'IncDSI': rows has no settings to search"),
        (('label = "S++"', 'label = "best"'), "lists a system 'best' twice"),
        (('method = "incdsi"', 'method = "incdsi"\nsettings = ["moon"]'), None),  # of another scale: it does not run here
    ],
)
def test_a_mistake_in_an_experiment_is_named(folder: Path, change: tuple[str, str], message: str | None) -> None:
    assert change[0] in SYSTEMS
    (folder / "choose.toml").write_text(SYSTEMS.replace(*change, 1))
    if message is None:
        assert "IncDSI" not in {point.label for point in read_experiment(folder / "choose.toml", "small").points}
        return
    with pytest.raises(PromptDSIError, match=rf"choose\.toml: .*{message}"):
        read_experiment(folder / "choose.toml", "small")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[run]", "[runs]"), "has an unknown key 'runs'; known are run, setting, sweep"),
        (("[setting.demo]\n", '[setting.demo]\nlable = "x"\n'), r"has an unknown key 'setting\.demo\.lable'; known are add, d0, "),
        (('choose = ["demo"]', 'choose = ["moon"]'), r"there is no \[setting\.moon\]"),
        (("[setting.demo]\n", "[setting.demo]\nseeds = []\n"), r"setting\.demo\.seeds: "),
        (("[setting.demo]\n", "[setting.demo]\nmethods.rowz = {}\n"), r"\[setting\.demo\]: no method 'rowz'"),
        (("add = { batch_size = 32 }", "add = { epoch = 1 }"), r"\[setting\.demo\]: no method has an option 'epoch'"),
        (("limit = 30", "limt = 30"), "stream has an unknown key 'limt'; known are source, "),
        (('source = "demo"', "sauce = 1"), "stream has an unknown key 'sauce'"),
        (("epochs = 1", "epochs = 1.5"), "rows: fit.epochs=1.5: expected a whole number, such as 20"),
        (
            ("[setting.demo]\n", "[sweep.choose]\nMissing = [1]\n[setting.demo]\n"),
            r"\[sweep\.choose\] has 'Missing', which is no system with a swept parameter",
        ),
        (("[setting.demo]\n", "[sweep.choose]\nIncDSI = [1]\n[setting.demo]\n"), r"\[sweep\.choose\] has 'IncDSI'"),
    ],
)
def test_a_mistake_in_a_scale_is_blamed_on_the_scale(folder: Path, change: tuple[str, str], message: str) -> None:
    scale = folder / "scales/small.toml"
    assert change[0] in scale.read_text()
    scale.write_text(scale.read_text().replace(*change, 1))
    with pytest.raises(DataError, match=rf"small\.toml: .*{message}"):
        read_experiment(folder / "choose.toml", "small")


def test_a_source_that_is_not_there_is_named_before_anything_runs(folder: Path, store: RunStore) -> None:
    scale = folder / "scales/small.toml"
    scale.write_text(scale.read_text().replace('source = "demo"', 'source = "my/files"'))
    runs = read_experiment(folder / "choose.toml", "small").runs  # a report of runs from elsewhere needs no source
    with pytest.raises(DataError, match="my/files: is neither a path nor one of the sources"):
        Runner(store, offline=True).run(runs)


def test_a_setting_in_which_nothing_runs_is_named(folder: Path) -> None:
    scale = folder / "scales/small.toml"
    scale.write_text(scale.read_text().replace("[setting.demo]\n", '[setting.demo]\nonly = ["Missing"]\n'))
    with pytest.raises(DataError, match="no system of it runs in the setting 'demo'"):
        read_experiment(folder / "choose.toml", "small")


def test_a_scale_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="has no scale 'huge'; there are small"):
        read_experiment(folder / "choose.toml", "huge")
    (folder / "other.toml").write_text(SYSTEMS)
    with pytest.raises(UsageError, match="scale small has no setting for other"):
        read_experiment(folder / "other.toml", "small")


def test_a_report_that_is_missing_or_wrong_is_named(folder: Path, store: RunStore) -> None:
    (folder / "choose.toml").write_text(SYSTEMS.replace('report = "choosing"', 'report = "poem"'))
    with pytest.raises(DataError, match=r"choose\.toml: wants a report 'poem'; .*reports has ablations, "):
        read_experiment(folder / "choose.toml", "small")
    (folder / "reports/poem.py").write_text("verses = 4\n")
    with pytest.raises(DataError, match=r"poem\.py: has no function `report\(results\)`"):
        write_report(read_experiment(folder / "choose.toml", "small"), store)


def test_a_run_is_refused_before_it_starts_where_its_report_is_missing(run: Any, folder: Path, store: RunStore) -> None:
    both = folder / "both.toml"
    (folder / "choose.toml").write_text(SYSTEMS.replace('report = "choosing"', 'report = "poem"'))
    outcome = run("bench", "run", both, folder / "choose.toml", "--scale", "small", "--results", store.folder, "--offline")
    assert outcome.returncode == 1 and "choose.toml: wants a report 'poem'" in outcome.stderr
    assert not store.folder.exists()  # not even the experiment whose report is there


def test_a_damaged_record_is_named(folder: Path, store: RunStore) -> None:
    run = read_experiment(folder / "both.toml", "small").runs[0]
    assert store.read(run.file) is None
    Runner(store, offline=True).run([run])
    path = store.path(run.file)
    content = json.loads(path.read_text())
    assert content["format"] == 2

    def refused(message: str, **changes: Any) -> None:
        path.write_text(json.dumps(content | changes))
        with pytest.raises(DataError, match=rf"{run.file}\.json: .*{message}"):
            store.read(run.file)

    ranks = content["ranks"]["test"]
    refused("has record format 9", format=9)
    refused("after step 2 are not one per query", ranks={"test": ranks | {"2": [ranks["2"][0][1:], *ranks["2"][1:]]}})
    refused("after step 1 are not one per query", ranks={"test": ranks | {"1": ranks["1"][:1]}})
    refused("before the first new corpus are missing", ranks={"test": {step: corpora for step, corpora in ranks.items() if step != "0"}})
    refused(r"ranks\.test\.0\.0\.0.*greater than 0", ranks={"test": ranks | {"0": [[0, *ranks["0"][0][1:]]]}})
    refused(r"ranks\.test\.0\.0\.0.*valid integer", ranks={"test": ranks | {"0": [["1", *ranks["0"][0][1:]]]}})
    refused("steps: Input should be a valid list", steps=None)
    refused("has no 'run.seed'", run={key: value for key, value in content["run"].items() if key != "seed"})
    refused("holds the run rows-7-", run=content["run"] | {"seed": 7})
    path.write_text('{"format": 1')
    with pytest.raises(DataError, match=r"is damaged .*; delete it and run the experiment again"):
        store.read(run.file)


def test_a_damaged_checkpoint_is_named(folder: Path, store: RunStore) -> None:
    d0 = read_experiment(folder / "both.toml", "small").settings[0].d0
    Runner(store, offline=True).d0(d0)
    weights = store.work / d0.file / "encoder.safetensors"
    content = weights.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[: len(content) // 2]):
        weights.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{d0.file}: is not the D0 its record describes; delete the folder"):
            Runner(store, offline=True).d0(d0)
    weights.write_bytes(content)
    (store.work / d0.file / "record.json").write_text("{}")
    with pytest.raises(DataError, match=r"record\.json: has no .*; delete .*, and D0 is learned again"):
        Runner(store, offline=True).d0(d0)


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_damaged_choices_are_named(folder: Path, store: RunStore, content: str) -> None:
    (store.folder / "small").mkdir(parents=True)
    (store.folder / "small/choose.json").write_text(content)
    with pytest.raises(DataError, match=r"choose\.json: .*; report choose\.toml again"):
        read_experiment(folder / "frontier.toml", "small", store)
