"""The rehearsal of the paper's scale: its raw files are read by the paper's sources, and its systems are the paper's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from promptdsi.bench.plan import read_experiment
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.methods.bm25 import BM25

ROOT = Path(__file__).parents[2]


def test_the_rehearsal_leaves_out_no_system_and_no_source_of_the_paper() -> None:
    paper, rehearsal = (read_experiment(ROOT / "experiments/main.toml", scale) for scale in ("paper", "rehearsal"))
    systems = [
        {(point.setting.d0.stream["source"], point.label, point.runs[0].method) for point in study.points} for study in (paper, rehearsal)
    ]
    assert systems[0] == systems[1]
    assert {run.search for run in paper.runs} == {0, 30} and {run.search for run in rehearsal.runs} == {0, 2}
    engines = {run.params["topic_engine"] for study in (paper, rehearsal) for run in study.runs if run.params.get("prompts") == "topic"}
    assert engines == {"bertopic"}


def test_its_raw_files_are_read_as_the_official_ones_are(run: Any, tmp_path: Path) -> None:
    sizes = ["--pages", "300", "--lines", "1000", "--relevant", "200"]
    command = [sys.executable, "-m", "tools.rehearse_paper", "--make", "--folder", str(tmp_path), *sizes]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for source, raw, documents in (("nq320k", "nq", 300), ("msmarco300k", "msmarco", 200)):
        request = Request(raw=tmp_path / "rehearsal" / raw)
        stream = build_stream(source, request)
        assert sum(len(corpus) for corpus in [*stream.corpora, *stream.extra]) == documents
        assert "malformed_lines" not in stream.split
        d0 = stream.corpora[0]
        pairs = d0.pairs("dev")
        assert len(pairs) > 30 and d0.pairs("test")
        ranks = BM25().fit(d0).ranks([pair.query.text for pair in pairs], [pair.docid for pair in pairs])
        assert (ranks == 1).mean() > 0.9
    arguments = ["--scale", "rehearsal", "--results", "results", "--offline", "--quiet", "--json", "--setting", "nq", "--only", "S++"]
    outcome = run("bench", "run", str(ROOT / "experiments/main.toml"), *arguments)  # in tmp_path, where rehearsal/ is
    assert outcome.returncode == 0, outcome.stderr
    assert len(json.loads(outcome.stdout)["written"]) == 1


def test_systems_wait_for_their_stream_and_their_d0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from tools.rehearse_paper import Stage, next_ready

    stream, d0, system, other = (
        Stage(name, data, "") for name, data in (("stream, then BM25", "ms"), ("D0", "ms"), ("S++", "ms"), ("S++", "nq"))
    )
    assert next_ready([d0, system], [stream]) is None and next_ready([d0, system], []) is d0
    assert next_ready([system, other], [d0]) is other and next_ready([system], [other]) is system
