"""For the tests of `promptdsi bench`: a small study on a slice of the demo corpus, and this repository's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np

from promptdsi.bench.plan import Experiment
from promptdsi.bench.report import markdown, report_parts, study_module
from promptdsi.bench.run_records import D0, D0Record, Run, RunRecord, StreamData
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import Split
from promptdsi.bench.system_results import collect_results
from promptdsi.methods import methods

SIZES = (40, 25, 30)  # queries of D0, D1, D2 in made-up records
VERSIONS = {"promptdsi": "0", "python": "3", "torch": "2", "transformers": "5"}
ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
SYSTEMS = """
title = "Small"
report = "choosing"
split = "dev"
[[system]]
label = "best"
method = "rows"
preset = "rows"
parameter = "rows.row_norm_scale"
sweep = [0.9, 1.0]
[[system]]
label = "S++"
method = "promptdsi"
prompts = "s++"
parameter = "add.row_lr"
sweep = [1e-4, 1e-2]
[[system]]
label = "IncDSI"
method = "incdsi"
search = 3
"""
CHOSEN = """
title = "Small, chosen"
report = "frontier"
systems_of = "choose"
chosen_by = "choose"
"""
SCALE = """
[run]
choose = ["demo"]
frontier = ["demo"]
both = ["demo"]
[setting.demo]
stream = { source = "demo", limit = 30, new = 2, share = 0.15, tune = 5 }
add = { batch_size = 32 }
[setting.demo.d0]
backbone = "BACKBONE"
fit = { epochs = 1, row_init = "document", batch_size = 32 }
pseudo_queries = 1
encoding = { max_tokens = 24, document_tokens = 48 }
"""


def our_module(name: str) -> ModuleType:
    """A module of this repository's study, such as `reports.layers`."""
    return study_module(EXPERIMENTS, name)


def copy_reports(folder: Path) -> None:
    """The reports of this repository, and what they import, for a study in another folder."""
    for path in (*EXPERIMENTS.glob("*.py"), *EXPERIMENTS.glob("reports/*.py")):
        target = folder / path.relative_to(EXPERIMENTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def small_study(folder: Path, backbone: str) -> Path:
    """A study on a slice of the demo corpus, with a backbone of a few thousand weights."""
    copy_reports(folder)
    (folder / "scales").mkdir()
    (folder / "scales/small.toml").write_text(SCALE.replace("BACKBONE", backbone))
    (folder / "choose.toml").write_text(SYSTEMS)
    (folder / "frontier.toml").write_text(CHOSEN)
    (folder / "both.toml").write_text(SYSTEMS.replace('split = "dev"\n', ""))
    return folder


def stream_data(split: Split) -> StreamData:
    sizes = [{"corpus": f"d{i}", "documents": 100 + i, "train": 7, "dev": n, "test": n, "pseudo": 0} for i, n in enumerate(SIZES)]
    tune = {"corpus": "tune", "documents": 5, "train": 1, "dev": 1, "test": 1, "pseudo": 0}
    content = {"stream": "made", "sizes": [*sizes, tune], "queries": {split: ["a" * 16 if split == "dev" else "b" * 16] * 3}}
    return StreamData.model_validate(content)


def made_up_run(run: Run) -> RunRecord:
    """A record as a run would write it, with ranks drawn with the run's own key as the seed."""
    rng = np.random.default_rng(int(run.key, 16))
    at_once, last = methods()[run.method].at_once, len(SIZES) - 1
    steps = [step for step in range(last + 1) if not at_once or step in (0, last)]
    prompts = run.params.get("prompts", "s++") if run.method == "promptdsi" else ""
    pool = {"l2p": 5, "s++": 5, "topic": 12}.get(prompts)
    words = [[f"word{topic}{i}" for i in range(6)] for topic in range(12)]
    topics = {"words": words, "weights": [[6.0 - i for i in range(6)]] * 12, "counts": [9] * 11 + [20], "examples": [["who | asks?"]] * 12}
    step = {"corpus": "d", "documents": 9, "seconds": 60.0, "training_seconds": 10.0, "training_queries": 2500, "training_steps": 11}
    content = {
        "run": run,
        "versions": VERSIONS | {"code": "c0de" if run.seed else "beef"},
        "data": stream_data(run.split),
        "d0_sha256": None if run.method in ("bm25", "dense") else "f00d" * 16,
        "fit_seconds": 1.0,
        "rehearsal_free": methods()[run.method].rehearsal_free,
        "trained_parameters": 345_600,
        "extra_bytes": 322_560,
        "steps": [step] * last,
        "queries_per_second": 100.0,
        "ranks": {run.split: {str(t): [rng.integers(1, 25, SIZES[i]).tolist() for i in range(t + 1)] for t in steps}},
        "prompt_counts": {"test": [rng.multinomial(n, [1 / pool] * pool).tolist() for n in SIZES]} if pool else None,
        "topics": topics if prompts == "topic" else None,
    }
    return RunRecord.model_validate(content)


def made_up_d0(d0: D0) -> D0Record:
    ranks = {"dev": {"0": [[1] * SIZES[0]]}}
    cost = {"sha256": "f00d" * 16, "seconds": 7200.0, "examples": 9, "steps": 9, "losses": [1.0] * 9}
    origin = {"run": d0, "versions": VERSIONS | {"code": "beef"}, "data": stream_data("dev")}
    return D0Record.model_validate({**origin, **cost, "ranks": ranks})


def report_text(experiment: Experiment, store: RunStore) -> str:
    """The Markdown alone: drawing takes longest."""
    results = collect_results(experiment, store)
    return markdown(results, report_parts(experiment, results))
