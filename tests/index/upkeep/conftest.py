"""An index of nine generations, for tests of what happens to it over time."""

from __future__ import annotations

from pathlib import Path

import pytest
import small

from promptdsi import Corpus, Index


@pytest.fixture(scope="package")
def many(original: Path, corpora: list[Corpus], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine generations: D0, D1, three documents one by one, one replaced, one deleted, one taught, and that taken back."""
    place = small.copied(original, tmp_path_factory.mktemp("many") / "index")
    index = Index.open(place, device="cpu")
    for number, document in enumerate(corpora[2].documents):  # 3, 4, 5
        index.add(Corpus([document], name=f"note {number}"), fast=False)
    index.add(Corpus([corpora[2].documents[0]._replace(text="Replaced by other words.")], name="changed"), update=True)  # 6
    index.delete(corpora[0].documents[0].docid)  # 7
    index.teach([("which note was taught", corpora[2].documents[1].docid)])  # 8
    index.rollback(7)  # 9
    return place


@pytest.fixture
def place(many: Path, tmp_path: Path) -> Path:
    return small.copied(many, tmp_path / "index")
