"""Filters: a filtered search equals leaving out of all scores what does not meet the conditions (R31)."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promptdsi import Corpus, Document, Index
from promptdsi.errors import UsageError
from promptdsi.index.filters import parse_condition, parse_where

YEARS, AUTHORS, TAGS = [1999, 2010, 2020, 2024], ["Ada", "Grace", "Edsger"], ["draft", "old", "new"]
OPERATORS = ["=", "!=", "<", "<=", ">", ">="]


def notes() -> list[Document]:
    """Documents with numbers, names, lists and dates, and some without any metadata; one is cut into passages."""
    documents = []
    for n in range(40):
        metadata: dict[str, Any] = {"year": YEARS[n % 4], "author": AUTHORS[n % 3], "tags": TAGS[: n % 4], "checked": n % 2 == 0}
        metadata["date"] = (datetime.date(2024, 1, 1) + datetime.timedelta(days=9 * n)).isoformat()
        text = f"The mill of note {n} grinds barley near the harbour." * (12 if n == 7 else 1)
        documents.append(Document(f"{'left' if n % 5 else 'right'}/{n:02}.md", text, f"Note {n}", {} if n % 10 == 9 else metadata))
    return documents


@pytest.fixture(scope="module")
def index(backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents, folder = notes(), tmp_path_factory.mktemp("filters") / "index"
    index = small.create(folder, Corpus(documents[:25], name="first"), backbone, effort="quick", **{"encoding.passage_tokens": 32})
    index.add(Corpus(documents[25:], name="second"), fast=True)
    index.delete([documents[3].docid, documents[30].docid])
    return index


def meets(document: Document, corpus: str, text: str) -> bool:
    """The condition, written independently: as Python compares."""
    field, sign, value = next(text.partition(sign) for sign in ("!=", "<=", ">=", "=", "<", ">") if sign in text)
    stored = {"docid": document.docid, "title": document.title, "corpus": corpus, **document.metadata}.get(field)
    values = stored if isinstance(stored, list) else [] if stored is None else [stored]
    if sign in ("=", "!="):
        options = value.split(",")
        equal = any(
            str(single).lower().startswith(option[:-1].lower()) if option.endswith("*") else str(single).lower() == option.lower()
            for single in values
            for option in options
        )
        return equal == (sign == "=")
    number = field == "year"
    order = [(single > int(value)) - (single < int(value)) if number else (single > value) - (single < value) for single in values]
    return any({"<": sign_of < 0, "<=": sign_of <= 0, ">": sign_of > 0, ">=": sign_of >= 0}[sign] for sign_of in order)


EQUALITY = st.sampled_from(["=", "!="])
conditions = st.one_of(
    st.builds(lambda sign, year: f"year{sign}{year}", st.sampled_from(OPERATORS), st.integers(1998, 2025)),
    st.builds(
        lambda sign, names: f"author{sign}{','.join(names)}", st.sampled_from(["=", "!="]), st.lists(st.sampled_from(AUTHORS), min_size=1)
    ),
    st.builds(lambda sign, tag: f"tags{sign}{tag}", EQUALITY, st.sampled_from(TAGS)),
    st.builds(lambda sign, month: f"date{sign}2024-{month:02}", st.sampled_from(OPERATORS), st.integers(1, 12)),
    st.sampled_from(["docid=left/*", "docid!=right/*", "docid=left/01.md,right/00.md", "corpus=second", "title=Note 1*", "checked=true"]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.lists(conditions, min_size=1, max_size=3), k=st.integers(1, 12), query=st.sampled_from(small.QUERIES))
def test_a_filtered_search_equals_filtering_all_scores(index: Index, where: list[str], k: int, query: str) -> None:
    documents = {document.docid: document for document in notes()}
    everything = index.search(query, k=100)
    expected = [hit for hit in everything if all(meets(documents[hit.docid], hit.corpus, condition) for condition in where)][:k]
    hits = index.search(query, k=k, where=where)
    assert [(hit.docid, hit.score, hit.passage) for hit in hits] == [(hit.docid, hit.score, hit.passage) for hit in expected]


def test_a_mapping_and_a_list_of_conditions_mean_the_same(index: Index) -> None:
    by_mapping = index.search("barley", where={"author": ["Ada", "Grace"], "year": 2020})
    assert by_mapping == index.search("barley", where=["author=Ada,Grace", "year=2020"])
    assert {hit.docid for hit in by_mapping} and parse_where({"checked": True}) == ("checked=true",)


def test_requests_of_one_batch_have_conditions_of_their_own(index: Index) -> None:
    from promptdsi.index.results import SearchRequest

    where = [(), ("corpus=first",), ("corpus=second",)]
    results = index.search_batch([SearchRequest("barley", 50, where=conditions) for conditions in where])
    everything, first, second = ({hit.docid for hit in result.hits} for result in results)
    assert first | second == everything and not first & second and len(everything) == 38


def test_ranks_of_an_explanation_are_those_among_the_documents_searched(index: Index) -> None:
    hits = index.search("note 8", where="docid=right/*", explain=True)
    assert sorted(hit.why.rank_by_rows for hit in hits if hit.why) == list(range(1, len(hits) + 1))


@pytest.mark.parametrize("wrong", ["year", "=2020", " ", "colour=red"])
def test_a_condition_that_cannot_hold_is_said(index: Index, wrong: str) -> None:
    with pytest.raises(UsageError, match=r"FIELD=VALUE|no document has a field 'colour'; the fields are docid"):
        index.search("barley", where=wrong)


def test_facets_count_documents_that_can_be_found(index: Index) -> None:
    facets = dict(index.facets())
    live = [document for document in notes() if document.docid not in ("left/03.md", "right/30.md")]
    assert dict(facets["author"])["Ada"] == sum(document.metadata.get("author") == "Ada" for document in live)
    assert dict(facets["tags"])["draft"] == sum("draft" in document.metadata.get("tags", []) for document in live)


def test_conditions_reach_command_line(index: Index, run: Any) -> None:
    outcome = run("search", index.path, "barley", "--where", "docid=right/*", "--where", "year>=2010", "-k", "40")
    assert "right/" in outcome.stdout and "left/" not in outcome.stdout
    assert run("search", index.path, "barley", "--where", "docid=nowhere/*").stdout.strip() == "no document meets these conditions"
    assert run("search", index.path, "barley", "--where", "year").returncode == 2


def test_a_condition_is_read_as_written() -> None:
    assert parse_condition(" size >= 10 ").values == ("10",) and parse_condition("a=b=c").values == ("b=c",)
