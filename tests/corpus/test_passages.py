"""Long documents are split into passages: nothing is lost, none is too long, and each knows its heading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Pair, Query, whole_text
from promptdsi.corpus.passages import SPECIAL_TOKENS, Passage, cut_corpus, passage_document, whole_documents

WORDS = st.sampled_from(["tea", "water.", "A", "leaf;", "\n", "\n\n", "# Kettle\n", "boils!", "東京都。", "Title\n=====\n", "x" * 30])
TEXTS = st.lists(WORDS, min_size=1, max_size=120).map(" ".join).filter(str.strip)


def token_starts(texts: Sequence[str]) -> list[np.ndarray]:
    """Words of up to five characters as tokens: the rules do not depend on a tokenizer."""
    return [np.array([match.start() for match in re.finditer(r"\S{1,5}", text)], np.int64) for text in texts]


@given(TEXTS, st.sampled_from(["", "A title", "A very long title " * 10]), st.integers(8, 60))
def test_every_character_belongs_to_one_passage_and_none_is_too_long(text: str, title: str, limit: int) -> None:
    document = Document("d", text, title)
    [parts] = cut_corpus(Corpus([document]), limit, token_starts).by_document
    assert parts[0].start == 0 and parts[-1].end == len(text)
    assert all(earlier.end == later.start for earlier, later in pairwise(parts))
    room = limit - SPECIAL_TOKENS
    if len(token_starts([whole_text(document)])[0]) <= room:
        assert len(parts) == 1
    for passage in parts:
        assert passage.start < passage.end
        assert len(parts) == 1 or len(token_starts([text[passage.start : passage.end]])[0]) <= room + 1  # a token may be split


def test_passages_end_at_headings_then_paragraphs_then_sentences() -> None:
    sentence = "one two three four five six seven eight nine ten. "
    text = f"{sentence * 3}\n\n{sentence * 2}\n\n## Brewing\n\n{sentence * 3}{sentence * 4}"
    [parts] = cut_corpus(Corpus([Document("d", text, "Tea")]), 45, token_starts).by_document
    texts = [text[passage.start : passage.end] for passage in parts]
    assert texts[0].endswith("\n\n") and "## Brewing" not in texts[0]
    assert texts[1].strip() == (sentence * 2).strip()
    assert texts[2].startswith("## Brewing") and texts[2].rstrip().endswith("ten.")
    assert [passage.heading for passage in parts] == ["", "", "", "Brewing", "Brewing"][: len(parts)]
    assert passage_document(Document("d", text, "Tea"), parts[3]).title == "Tea. Brewing"


def test_a_short_document_is_one_passage_as_it_is() -> None:
    corpus = Corpus([Document("a", "green tea", "Tea"), Document("b", "a kettle")])
    passages = cut_corpus(corpus, 20, token_starts)
    assert passages == whole_documents(corpus)
    assert passages.documents() == corpus.documents and passages.boundaries() == [[], []]


def test_the_words_of_a_query_go_to_the_passage_that_has_most_of_them() -> None:
    text = "tea leaves are green and dry. " * 6 + "\n\n" + "a kettle boils the water fast. " * 6
    corpus = Corpus([Document("d", text)], [Query("q", "what boils water")], {"train": [Judgement("q", "d")]})
    passages = cut_corpus(corpus, 50, token_starts)
    texts = list(passages.texts_with_queries([Pair(corpus.queries[0], "d")]))
    assert [("what boils water" in part) for part in texts] == [False] * (len(texts) - 1) + [True]
    assert passages.docids == ["d"] * len(texts)
    assert passages.boundaries() == [[*(passage.start for passage in passages.by_document[0]), len(text)]]


def test_a_document_of_one_endless_word_is_cut_all_the_same() -> None:
    [parts] = cut_corpus(Corpus([Document("d", "x" * 1000)]), 20, token_starts).by_document
    assert parts[0] == Passage(0, 90) and parts[-1].end == 1000


def test_a_character_of_many_tokens_does_not_stop_the_cutting() -> None:
    bytes_as_tokens = lambda texts: [np.repeat(np.arange(len(text)), 4) for text in texts]  # noqa: E731
    [parts] = cut_corpus(Corpus([Document("d", "🦉" * 20)]), 5, bytes_as_tokens).by_document
    assert [(part.start, part.end) for part in parts] == [(number, number + 1) for number in range(20)]


def test_lines_that_end_as_on_windows_are_split_alike() -> None:
    text = "# Kettle\nIt boils. It boils again and again.\n\nThen it is quiet for a while.\n\nTea\n===\nLeaves are green, some black."
    plain, windows = (cut_corpus(Corpus([Document("d", each)]), 14, token_starts) for each in (text, text.replace("\n", "\r\n")))
    assert [passage.heading for passage in windows.by_document[0]] == [passage.heading for passage in plain.by_document[0]]
    texts = [[document.text for document in passages.documents()] for passages in (plain, windows)]
    assert [each.replace("\r", "") for each in texts[1]] == texts[0]
