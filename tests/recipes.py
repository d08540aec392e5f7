"""What the code in CONTRIBUTING.md must do once it stands in a copy of the package; `test_recipes.py` runs this there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from promptdsi import Corpus, DataError, Document
from promptdsi.evaluation.evaluate import QueryRanks, values


def test_recipe_source_and_command(run: Any) -> None:
    assert run("data", "proverbs", "-o", "stream", "--new", "1", "--share", "0.4", "--quiet").returncode == 0
    assert json.loads(run("sizes", "stream/d0").stdout)["documents"] == 2
    assert "sizes" in run("--help").stdout


def test_recipe_corpus_format(tmp_path: Path) -> None:
    corpus = Corpus([Document("a", 'tea, "green"'), Document("b", "bread")])
    corpus.write(tmp_path / "c.csv", format="csv")
    assert Corpus.read(tmp_path / "c.csv") == corpus
    (tmp_path / "c.csv").write_text("a,tea\nb\n")
    with pytest.raises(DataError, match=r"c\.csv:2: 1 values, expected docid and text"):
        Corpus.read(tmp_path / "c.csv")
    with pytest.raises(ValueError, match="write a BEIR folder"):
        Corpus([Document("a", "tea", "title")]).write(tmp_path / "t.csv", format="csv")


def test_recipe_generator(run: Any, small: Corpus, tmp_path: Path) -> None:
    small.write(tmp_path / "c")
    assert run("queries", "c", "-g", "first-words", "--quiet").returncode == 0
    assert "Tea is brewed with fresh" in [query.text for query in Corpus.read(tmp_path / "c").queries if query.kind == "pseudo"]


def test_recipe_metric() -> None:
    assert values("Recall@5", [QueryRanks([1, 9], [1, 1]), QueryRanks([2], [1])]).tolist() == [0.5, 1.0]


def test_recipe_report(run: Any, tmp_path: Path) -> None:
    experiments = Path(__file__).parent.parent / "experiments"
    (experiments / "hits.toml").write_text('title = "Hits"\nreport = "hits"\n[[system]]\nlabel = "BM25"\nmethod = "bm25"\n')
    scale = (experiments / "scales/tiny.toml").read_text("utf-8").replace("[run]\n", '[run]\nhits = ["demo"]\n')
    (experiments / "scales/recipe.toml").write_text(scale)
    for command in ("run", "report"):
        outcome = run("bench", command, experiments / "hits.toml", "--scale", "recipe", "--results", "results", "--quiet")
        assert outcome.returncode == 0, outcome.stderr
    assert "| BM25 |" in (tmp_path / "results/recipe/hits.md").read_text()


def test_recipe_strategy_and_method_are_listed() -> None:
    from promptdsi.methods import methods
    from promptdsi.model.prompts import strategies

    assert "corpus-mean" in strategies() and "dense-titles" in methods()
