"""Word scores against the formula written out, and fused search by document against a float64 reference at every layout."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptdsi.corpus.split_words import split_words
from promptdsi.engine.postings import Postings, Terms, WordStatistics, statistics_from, to_tensors
from promptdsi.engine.quantized import RowBlock, quantize
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.words import K1, B, WordTable

VOCABULARY = ["tea", "water", "kettle", "leaf", "mountain", "INV-2023-00417", "0xC000021A", "naïve", "東京都", "etc/nginx/sites"]
TEXTS = st.lists(st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join), min_size=1, max_size=30)


def reference_coverage(query: str, texts: list[str], statistics_texts: list[str]) -> list[float]:
    """The formula, word by word."""
    counted = [Counter(split_words(text)) for text in statistics_texts]
    lengths = [sum(words.values()) for words in counted if words]
    average = sum(lengths) / len(lengths) if lengths else 1.0

    def idf(word: str) -> float:
        frequency = sum(word in words for words in counted)
        return math.log(1 + (len(lengths) - frequency + 0.5) / (frequency + 0.5))

    query_words = Counter(split_words(query))
    total = sum(count * idf(word) for word, count in query_words.items())
    covered = []
    for words in (Counter(split_words(text)) for text in texts):
        penalty = K1 * (1 - B + B * sum(words.values()) / average)
        covered.append(sum(count * idf(word) * words[word] / (words[word] + penalty) for word, count in query_words.items()) / (total or 1))
    return covered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Order INV-2023-00417!", ["order", *["inv-2023-00417"] * 3, "inv", "2023", "00417"]),
        ("0xC000021A", ["0xc000021a"]),
        ("see /etc/nginx/sites.", ["see", *["etc/nginx/sites"] * 3, "etc", "nginx", "sites"]),
        ("web-eu-07 RFC-9110", [*["web-eu-07"] * 3, "web", "eu", "07", *["rfc-9110"] * 3, "rfc", "9110"]),
        ("4.A7/C2 v2.13.0-rc1", [*["4.a7/c2"] * 3, "4", "a7", "c2", *["v2.13.0-rc1"] * 3, "v2", "13", "0", "rc1"]),
        ("naïve NAÏVE nai\u0308ve", ["naïve", "naive"] * 3),
        ("東京都 ２０", ["東京", "京都", "20"]),
        ("the of and", []),
        ("", []),
    ],
)
def test_identifiers_count_whole_and_in_parts(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


@given(TEXTS, TEXTS, st.lists(st.sampled_from([*VOCABULARY, "unseen", "2023", "naive"]), min_size=1, max_size=5).map(" ".join))
def test_coverage_is_the_formula_whatever_the_corpora(first: list[str], second: list[str], query: str) -> None:
    postings = [Postings.build(first), Postings.build(second)]
    statistics = WordStatistics.of(postings[0])  # frozen at the first corpus
    for table in (WordTable(postings, statistics), WordTable([Postings.concat(postings)], statistics)):
        words = table.query(query)
        expected = reference_coverage(query, first + second, first)
        np.testing.assert_allclose(words.coverage(range(len(table))), expected, rtol=1e-12, atol=1e-15)
        approximate = np.zeros(len(table), np.float32)
        words.add_to(approximate[: len(first)], 0)
        words.add_to(approximate[len(first) :], len(first))
        assert np.abs(approximate - expected).max() <= words.error
        for passage in range(len(table)):
            assert sum(weight for _, weight in words.matches(passage)) == pytest.approx(expected[passage])


@given(TEXTS, st.sets(st.integers(0, 29)))
def test_erasing_passages_leaves_the_others_as_they_were(texts: list[str], erased: set[int]) -> None:
    erased = {number for number in erased if number < len(texts)}
    postings, statistics = Postings.build(texts), WordStatistics.of(Postings.build(texts))
    left = postings.without(erased)
    remaining = {word for number, text in enumerate(texts) if number not in erased for word in split_words(text)}
    assert {term.decode() for term in left.terms} == remaining
    fewer = statistics.only([left.terms])
    assert len(fewer.ends) == len(remaining)
    before, after = WordTable([postings], statistics), WordTable([left], fewer)
    for word in remaining:
        expected = [0.0 if number in erased else value for number, value in enumerate(before.query(word).coverage(range(len(texts))))]
        np.testing.assert_array_equal(after.query(word).coverage(range(len(texts))), expected)


def test_hashed_terms_score_alike_and_hold_no_word() -> None:
    texts = ["green tea from the mountain", "a kettle of water"]
    plain, secret = Postings.build(texts), Postings.build(texts, "salt")
    assert b"mountain" not in secret.text.tobytes()
    tables = [WordTable([plain], WordStatistics.of(plain)), WordTable([secret], WordStatistics.of(secret), salt="salt")]
    scores = [table.query("mountain tea and coffee").coverage([0, 1]) for table in tables]
    np.testing.assert_array_equal(*scores)
    assert [word for word, _ in tables[1].query("mountain tea").matches(0)] == ["mountain", "tea"]


def test_records_survive_the_disk_and_misfits_are_refused() -> None:
    postings = Postings.build(["tea leaf tea", "kettle"])
    postings.check()
    statistics = WordStatistics.of(postings)
    assert statistics_from(to_tensors(statistics)).idf(0) == statistics.idf(0)
    for wrong in (
        postings._replace(passages=postings.passages + 5),
        postings._replace(pointers=postings.pointers[:-1]),
        postings._replace(ends=postings.ends + 1),
        postings._replace(counts=postings.counts.astype(np.int32)),
    ):
        with pytest.raises(ValueError, match="word postings"):
            wrong.check()
    with pytest.raises(ValueError, match="word statistics"):
        statistics_from(to_tensors(statistics) | {"average": np.array([np.nan])})


def reference_ranking(
    rows: np.ndarray, query: np.ndarray, coverage: np.ndarray, docids: list[str], deleted: set[int]
) -> list[tuple[str, np.float32]]:
    """Every live document with its best score, best first, ties by docid; all in float64, rounded once."""
    best: dict[str, np.float32] = {}
    for row, docid in enumerate(docids):
        if row not in deleted:
            score = np.float32((rows[row].astype(np.float64) * query.astype(np.float64)).sum() + coverage[row])
            best[docid] = max(best.get(docid, np.float32(-np.inf)), score)
    return sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))


@given(
    st.integers(0, 10_000),
    st.lists(st.integers(1, 6), min_size=1, max_size=60),
    st.integers(1, 4),
    st.booleans(),
    st.integers(1, 20),
    st.sampled_from([1, 20]),
)
def test_fused_search_by_document_is_exact(seed: int, passages: list[int], blocks: int, words: bool, k: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    docids = [f"d{number:02d}" for number in rng.permutation(len(passages))]
    names = [docid for docid, count in zip(docids, passages, strict=True) for _ in range(count)]
    starts = np.cumsum([0, *passages[:-1]])
    rows = rng.integers(-1, 2, (len(names), 8)).astype(np.float32)  # few values: many ties
    queries = rng.integers(-1, 2, (batch, 8)).astype(np.float32)
    texts = [" ".join(rng.choice(VOCABULARY, rng.integers(0, 6))) for _ in names]
    hidden = {number for number in range(len(passages)) if rng.random() < 0.2}
    deleted = {row for number in hidden for row in range(starts[number], starts[number] + passages[number])}
    edges = sorted({0, *rng.integers(0, len(names) + 1, blocks - 1).tolist(), len(names)})
    parts = [rows[low:high] for low, high in pairwise(edges)]
    table = RowTable([RowBlock(part, quantize(part)) for part in parts], names, deleted, document_starts=starts)
    postings = [Postings.build(texts[low:high]) for low, high in pairwise(edges)]
    word_table = WordTable(postings, WordStatistics.of(postings[0]), weight=1.5)
    word_queries = [word_table.query(" ".join(rng.choice(VOCABULARY, 3))) for _ in queries] if words else None
    top = table.top(queries, k, word_queries)
    for position, query in enumerate(queries):
        mine = word_queries[position] if word_queries else None
        coverage = mine.scores(range(len(names))) if mine else np.zeros(len(names))
        expected = reference_ranking(rows, query, coverage, names, deleted)
        got = [(names[row], score) for row, score in zip(top.rows[position], top.scores[position], strict=True)]
        assert got == expected[:k]
        if position == 0 and expected:
            targets = [table.row_of[docid] for docid, _ in expected]
            assert table.ranks(query[None], [targets], [mine])[0].tolist() == list(range(1, len(expected) + 1))


@given(st.lists(st.binary(max_size=12), unique=True), st.lists(st.binary(max_size=12)))
def test_terms_are_looked_up_by_all_their_bytes(present: list[bytes], others: list[bytes]) -> None:
    """Also where many begin with the same eight bytes, where zeros end a term, and where there is none."""
    stored = sorted(term for term in {prefix + term for term in present for prefix in (b"", b"the same")} if term)
    terms = [*stored, *others, *(term + b"\0" for term in stored)]
    assert Terms.of(stored).find(terms) == [stored.index(term) if term in stored else -1 for term in terms]
