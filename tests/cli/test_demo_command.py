"""`promptdsi demo`: every step, here with a random encoder so that it takes seconds; `make demo` uses the real one."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny

from promptdsi import Index
from promptdsi.corpus.sources import Request, build_stream


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    corpora = build_stream("demo", Request()).corpora
    words = sorted({word for corpus in corpora for query in corpus.queries for word in re.findall(r"\w+", query.text.lower())})
    folder = str(tiny.backbone_folder(tmp_path / "backbone", words, max_position_embeddings=300))
    params = {"fit.epochs": 1, "add.epochs": 1, "pseudo_queries": 1}
    monkeypatch.setattr(Index, "create", functools.partial(Index.create, params=params, backbone=folder))


def test_the_demo_runs_every_step(quick: None, run: Any, tmp_path: Path, no_network: None) -> None:
    outcome = run("demo", "--threads", "1")
    assert outcome.returncode == 0, outcome.stderr
    for text in (
        "1. Train d0: 270 documents on 15 subjects.",
        "d4: 20 documents in",
        "old document files opened: 0, old blobs unchanged: 19 of 19",
        "Hits@10, test",
        "dense",
        "BM25",
        "3. Add a long document: a handbook of 503 words in 8 passages",
        "4.A7/C2     (a part number, in one passage of the handbook)\n  1 ",
        "not retrieved; ",
        "rolled back: ",
        "6. Verify: 8 generations",
        "which form do I need to renew a passport     (a question that nothing answers)",
        "Next:",
    ):
        assert text in outcome.stdout, text
    index = Index.open(tmp_path / "promptdsi-demo/index", device="cpu")
    assert (index.generation, len(index)) == (8, 353) and index.verify().problems == []
    assert index.search("4.A7/C2")[0].docid == "house-handbook"  # also with an encoder that knows nothing
    assert len(index.eval_records()) == 1 + 2 + 3 + 4 + 5  # the retention chart: every corpus after every step
    (tmp_path / "promptdsi-demo/mine.txt").write_text("notes")
    again = run("demo", "--json", "--threads", "1")
    figures = json.loads(again.stdout)
    assert set(figures["hits@10"]) == {*(f"after d{number}" for number in range(5)), "dense", "BM25"}
    assert (tmp_path / "promptdsi-demo/mine.txt").exists()


def test_the_demo_overwrites_no_other_folder(run: Any, tmp_path: Path) -> None:
    (tmp_path / "promptdsi-demo").mkdir()
    (tmp_path / "promptdsi-demo/thesis.txt").write_text("years of work")
    outcome = run("demo")
    assert outcome.returncode == 1 and "exists and was not made by the demo; give another folder with -o" in outcome.stderr
    assert [path.name for path in (tmp_path / "promptdsi-demo").iterdir()] == ["thesis.txt"]
