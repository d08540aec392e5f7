"""Levels of effort: an index answers untrained, and is trained better later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small

from promptdsi import Corpus, Index
from promptdsi.errors import UsageError


def create(folder: Path, corpus: Corpus, backbone: str, effort: str, **changes: Any) -> Index:
    return small.create(folder, corpus, backbone, effort=effort, **changes)


def test_tune_raises_an_untrained_index_to_what_create_would_have_made(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    untrained = create(tmp_path / "index", corpora[0], backbone, "quick", keep_queries=True)
    before = small.signature(untrained)
    assert untrained.manifest.corpora[0].fast and untrained.report is not None and untrained.report.fast
    (report,) = untrained.tune()
    assert report.kind == "tune" and untrained.generation == 2 and not untrained.manifest.corpora[0].fast
    normal = create(tmp_path / "normal", corpora[0], backbone, "normal")
    assert untrained.manifest.corpora[0].rows == normal.manifest.corpora[0].rows  # blobs are named by their checksum
    assert untrained.manifest.encoder == normal.manifest.encoder
    untrained.tune(effort="full")
    assert untrained.generation == 3 and untrained.manifest.encoder != normal.manifest.encoder
    assert untrained.manifest.params["fit"]["learn"] == "everything"
    with pytest.raises(UsageError, match="was learned with that effort, or more, already"):
        untrained.tune(effort="normal")
    assert untrained.tune() == []  # nothing is left to train
    assert not untrained.verify().problems
    untrained.rollback(1)
    assert small.signature(untrained) == before


def test_words_of_queries_that_were_not_stored_still_count_after_tuning(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    index = create(tmp_path / "index", corpora[0], backbone, "quick")
    words = index.manifest.corpora[0].words
    index.tune()
    assert index.manifest.corpora[0].words == words and index.manifest.corpora[0].queries is None


def test_full_effort_answers_before_it_has_trained(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    answers = []

    def on_start(work: Any) -> None:
        if work.searchable:
            answers.append(len(Index.open(tmp_path / "index", device="cpu").search("what is water made of")))

    index = create(tmp_path / "index", corpora[0], backbone, "full", on_start=on_start)
    assert answers == [10] and index.generation == 2
    assert [manifest.kind for manifest in index.log()] == ["create", "tune"]
    quick = create(tmp_path / "quick", corpora[0], backbone, "quick")
    assert small.signature(Index.open(tmp_path / "index", at=1, device="cpu")) == small.signature(quick)


def test_only_a_first_corpus_that_is_alone_and_entire_is_trained_again(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    index = create(tmp_path / "index", corpora[0], backbone, "quick")
    index.delete(corpora[0].documents[0].docid)
    with pytest.raises(UsageError, match="has deleted documents"):
        index.tune(effort="normal")
    index.undelete(corpora[0].documents[0].docid)
    index.add(corpora[1])
    with pytest.raises(UsageError, match="has later corpora"):
        index.tune(effort="full")
    assert index.tune() == []
    with pytest.raises(UsageError, match="effort='heroic' must be one of quick, normal, full"):
        index.tune(effort="heroic")


def test_the_estimate_of_create_names_every_level(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    works: list[Any] = []
    create(tmp_path / "index", corpora[0], backbone, "quick", on_start=works.append)
    seconds = dict(works[0].efforts)
    assert list(seconds) == ["quick", "normal", "full"] and 0 < seconds["quick"] < seconds["normal"] < seconds["full"]
    assert works[0].seconds == seconds["quick"]
