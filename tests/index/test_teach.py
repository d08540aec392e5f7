"""`teach`: a document learns a query; every other document keeps its row, its words and its score to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small

from promptdsi import Corpus, DataError, Document, Index
from promptdsi.errors import PromptDSIError, UsageError

SUBJECTS = ["kettle", "harbour", "glacier", "violin", "lantern", "orchard", "compass", "beehive"]
QUERY = "zanzibar quartz mill"


def notes(count: int = 24) -> list[Document]:
    long = " ".join(f"Paragraph {n} speaks of the lantern and the viaduct." for n in range(30))
    return [
        Document(f"n{n:02}", long if n == 5 else f"The {SUBJECTS[n % 8]} of note {n} stands near a mill.", f"Note {n}")
        for n in range(count)
    ]


@pytest.fixture(params=["text", "none"])
def index(request: pytest.FixtureRequest, backbone: str, tmp_path: Path) -> Index:
    options = {"effort": "quick", "store": request.param, "encoding.passage_tokens": 32}
    index = small.create(tmp_path / "index", Corpus(notes(), name="notes"), backbone, **options)
    index.add(Corpus([Document("later", "A later document about barley.")], name="later"), fast=True)
    return index


def scores(index: Index, query: str) -> dict[str, float]:
    return {hit.docid: hit.score for hit in index.search(query, k=100)}


@pytest.mark.parametrize("docid", ["n03", "n05", "later"])
def test_a_taught_document_comes_first_and_no_other_score_moves(index: Index, docid: str) -> None:
    queries = [QUERY, *small.QUERIES]
    before = {query: scores(index, query) for query in queries}
    files = {path.name: path.read_bytes() for path in (index.path / "blobs").iterdir()}
    report = index.teach([(QUERY, docid)])
    assert [(taught.docid, taught.after) for taught in report.taught] == [(docid, 1)] and report.generation == index.generation == 3
    assert index.search(QUERY)[0].docid == docid and len(index) == 25
    for query in queries:
        after = scores(index, query)
        assert {other: after[other] for other in after if other != docid} == {o: before[query][o] for o in before[query] if o != docid}
    assert all((index.path / "blobs" / name).read_bytes() == content for name, content in files.items())
    assert not index.verify().problems and index.manifest.kind == "teach"


def test_names_do_not_grow_with_every_lesson(index: Index) -> None:
    first = index.info().corpora[0].corpus
    for lesson in range(3):
        index.teach([(f"lesson number {lesson}", "n03")])
    assert [corpus.corpus for corpus in index.info().corpora][-3:] == [f"{first} 2", f"{first} 3", f"{first} 4"]


def test_rollback_undoes_it(index: Index) -> None:
    before = scores(index, QUERY)
    index.teach([(QUERY, "n03")])
    index.rollback()
    assert scores(index, QUERY) == before


def test_many_corrections_are_one_generation_and_a_row_turns_only_so_far(index: Index) -> None:
    rows = {docid: index.opened.table.vectors([index.opened.row_of[docid]])[0] for docid in ("n01", "n02")}
    index.teach(
        [(f"{word} of no meaning {n}", docid) for docid in rows for n, word in enumerate(["amber", "basalt", "cobalt", "dolomite"])]
    )
    assert index.generation == 3
    for docid, row in rows.items():
        new = index.opened.table.vectors([index.opened.row_of[docid]])[0]
        assert np.linalg.norm(new) == pytest.approx(np.linalg.norm(row), rel=1e-5)
        assert new @ row / np.linalg.norm(row) ** 2 >= 1 / np.sqrt(1.25) - 1e-5


def test_what_was_taught_survives_later_changes_and_is_purged_with_its_document(index: Index) -> None:
    index.teach([(QUERY, "n03")])
    index.add(Corpus([Document("new", "Another one about rye.")], name="new"), fast=True)
    assert index.search(QUERY)[0].docid == "n03"
    index.purge("n03")
    assert "n03" not in scores(index, QUERY)
    assert not any(b"zanzibar" in path.read_bytes() for path in (index.path / "blobs").iterdir())


def test_a_taught_document_of_a_folder_stays_in_step_with_it(backbone: str, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for document in notes(6):
        (folder / f"{document.docid}.txt").write_text(document.text)
    index = small.create(tmp_path / "index", Corpus.read(folder), backbone, effort="quick")
    index.teach([(QUERY, "n03.txt")])
    report = index.sync(folder, fast=True)
    assert report.unchanged == 6 and report.corrections_lost == 0
    (folder / "n03.txt").unlink()
    assert index.sync(folder, fast=True).deleted == ["n03.txt"]


def test_a_new_text_has_not_learned_the_corrections_of_the_old(index: Index, run: Any, tmp_path: Path) -> None:
    index.teach([(QUERY, "n03"), (QUERY, "later")])
    (tmp_path / "new.jsonl").write_text('{"_id": "n03", "text": "Another text."}\n{"_id": "n04", "text": "And another."}\n')
    outcome = run("add", index.path, "new.jsonl", "--update", "--fast")
    assert "1 document had learned corrections, which its new text has not: teach them again" in outcome.stderr
    index.refresh()
    again = index.add(Corpus([Document("n03", "A third text.")], name="third"), update=True, fast=True)
    assert again.corrections_lost == 0


def test_corrections_that_push_away_others_are_refused(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, keep_probes=5)
    with pytest.raises(PromptDSIError, match="not committed"):
        index.teach([("how does it work", corpora[0].documents[0].docid)], max_drift=-1.0)
    assert index.generation == 1


def test_wrong_corrections_are_said(index: Index, run: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no document 'nowhere'"):
        index.teach([(QUERY, "nowhere")])
    with pytest.raises(DataError, match=r"no document 'notes/n03' in generation 2; did you mean 'n03'\?"):
        index.teach([(QUERY, "notes/n03")])
    with pytest.raises(UsageError, match="no correction"):
        index.teach([])
    with pytest.raises(UsageError, match="a query and the docid"):
        index.teach([(" ", "n03")])
    assert run("teach", index.path, "a query alone").returncode == 2
    (tmp_path / "corrections.tsv").write_text(f"{QUERY}\tn03\nanother query\tn04\n")
    outcome = run("teach", index.path, "--from", tmp_path / "corrections.tsv")
    assert "→ 1: n03" in outcome.stderr and "2 corrections learned" in outcome.stderr
