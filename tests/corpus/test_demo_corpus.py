"""The embedded demo corpus: everything about its quality that a program can check."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from promptdsi import Corpus
from promptdsi.corpus.sources import Request, build_stream

QUESTION = {
    "what",
    "why",
    "how",
    "when",
    "where",
    "which",
    "who",
    "whose",
    "do",
    "does",
    "did",
    "is",
    "are",
    "was",
    "were",
    "can",
    "should",
    "will",
}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


@pytest.fixture(scope="module")
def demo() -> list[Corpus]:
    return build_stream("demo", Request()).corpora


@pytest.fixture(scope="module")
def queries_by_document(demo: list[Corpus]) -> dict[str, dict[str, list[str]]]:
    """Queries of each document by split."""
    queries: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for corpus in demo:
        for split in ("train", "dev", "test"):
            for pair in corpus.pairs(split):
                queries[pair.docid][split].append(pair.query.text)
    return queries


def test_sizes_and_arrival(demo: list[Corpus]) -> None:
    assert len(demo) == 5
    subjects = [{document.metadata["subject"] for document in corpus.documents} for corpus in demo]
    assert sum(map(len, demo)) >= 300 and len(set().union(*subjects)) >= 12
    new = [number for number in range(1, 5) if subjects[number] - set().union(*subjects[:number])]
    assert new == [3] and len(subjects[3]) == 1  # one later corpus brings a new subject


def test_documents_are_short_and_distinct(demo: list[Corpus]) -> None:
    documents = [document for corpus in demo for document in corpus.documents]
    for document in documents:
        assert 40 <= len(document.text.split()) <= 120, document.docid
        assert document.title and document.text[-1] in ".!?", document.docid
    assert len({document.title.casefold() for document in documents}) == len(documents)
    openings = Counter(" ".join(words(document.text)[:4]) for document in documents)
    assert openings.most_common(1)[0][1] <= 2  # no template


def test_each_document_has_six_queries_of_mixed_kind(demo: list[Corpus], queries_by_document: dict[str, dict[str, list[str]]]) -> None:
    for corpus in demo:
        for document in corpus.documents:
            queries = queries_by_document[document.docid]
            assert {split: len(texts) for split, texts in queries.items()} == {"train": 4, "dev": 1, "test": 1}, document.docid
            everything = [text for texts in queries.values() for text in texts]
            assert all(2 <= len(words(text)) <= 16 for text in everything), document.docid
            questions = [text for text in everything if words(text)[0] in QUESTION]
            assert 2 <= len(questions) < 6, document.docid


def test_queries_paraphrase_and_do_not_copy(demo: list[Corpus], queries_by_document: dict[str, dict[str, list[str]]]) -> None:
    for corpus in demo:
        for document in corpus.documents:
            text = words(f"{document.title} . {document.text}")
            runs = {tuple(text[i : i + 5]) for i in range(len(text))}
            everything = [query for texts in queries_by_document[document.docid].values() for query in texts]
            for query in everything:
                query_words = words(query)
                assert not any(tuple(query_words[i : i + 5]) in runs for i in range(len(query_words) - 4)), query
                assert query_words != words(document.title), query
            wholly_copied = [query for query in everything if set(words(query)) <= set(text)]
            assert len(wholly_copied) <= 3, document.docid


def test_no_query_stands_under_two_documents(queries_by_document: dict[str, dict[str, list[str]]]) -> None:
    holders: dict[str, set[str]] = defaultdict(set)
    for docid, splits in queries_by_document.items():
        for texts in splits.values():
            for text in texts:
                holders[" ".join(sorted(set(words(text))))].add(docid)  # the same words in another order count as the same
    assert [key for key, docids in holders.items() if len(docids) > 1] == []


def test_the_embedded_files_are_built_from_their_sources() -> None:
    root = Path(__file__).parents[2]
    outcome = subprocess.run(
        [sys.executable, "-m", "tools.docs.build_demo", "--check"], cwd=root, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_it_needs_no_network(demo: list[Corpus], no_network: None, tmp_path: Path) -> None:
    assert build_stream("demo", Request(offline=True)).write(tmp_path / "s")["name"] == "demo"
