"""A contract every method keeps: one file each, the same verbs, and the truth about what it remembers (R23)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from all_strategies import ALL

from promptdsi import Corpus
from promptdsi.errors import DataError, UsageError
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.model.path import unit
from promptdsi.training.encoding import selection_vectors

QUERIES = ["how does a telescope work", "what is bread made of", "the"]
# A pool and its keys are a place to keep something of an old corpus, so every strategy is looked at, and the key of no prompt.
STRATEGIES = {name: {"prompts": name} for name in ALL} | {"s++, null": {"prompts": "s++", "prompt_options": {"null_prompt": True}}}
REHEARSAL_FREE = [
    *(pytest.param(name, {}, id=name) for name, kind in methods().items() if kind.rehearsal_free and kind is not PromptDSI),
    *(pytest.param("promptdsi", changes, id=f"promptdsi, {name}") for name, changes in STRATEGIES.items()),
]


def test_methods_are_found_by_their_files() -> None:
    assert {"promptdsi", "rows", "dense", "bm25", "hybrid", "rrf"} <= set(methods())
    files = [kind.__module__ for kind in methods().values()]
    assert len(set(files)) == len(files)  # one file per method


@pytest.mark.parametrize("name", methods())
def test_the_contract(name: str, backbone: str, corpora: list[Corpus], tmp_path: Path, no_network: None) -> None:
    method: Any = small.method(name, backbone)
    assert not [key for key in vars(method) if key.endswith("_")]  # a constructor stores and stops
    assert type(method).from_params(json.loads(json.dumps(method.get_params()))) == method
    assert method.fit(corpora[0]) is method
    seen = [document.docid for document in corpora[0].documents]
    before = method.search(QUERIES, k=100)
    assert all(sorted(result.docids) == sorted(seen) for result in before)
    assert method.add(corpora[1]) is method
    seen += [document.docid for document in corpora[1].documents]
    results = method.search(QUERIES, k=100)
    for result in results:
        assert sorted(result.docids) == sorted(seen)
        assert result.scores == sorted(result.scores, reverse=True)
        ties = zip(result.docids, result.scores, result.docids[1:], result.scores[1:], strict=False)
        assert all(docid < next_docid for docid, score, next_docid, next_score in ties if score == next_score)
    docids = [seen[0], seen[-1], seen[5]]
    ranks = method.ranks(QUERIES, docids)
    assert ranks.tolist() == [result.docids.index(docid) + 1 for result, docid in zip(results, docids, strict=True)]
    assert [result.docids for result in method.search(QUERIES, k=3)] == [result.docids[:3] for result in results]
    assert method.search("bread", k=2) == method.search(["bread"], k=2) and method.search([]) == []
    method.save(tmp_path / "saved")
    again = type(method).load(tmp_path / "saved")
    assert again.search(QUERIES, k=100) == results and again.get_params() == method.get_params()
    assert again.add(corpora[2]).search(QUERIES, k=100) == method.add(corpora[2]).search(QUERIES, k=100)  # a loaded method trains alike
    repeated: Any = small.method(name, backbone)
    repeated.fit(corpora[0]).add(corpora[1])
    assert repeated.search(QUERIES, k=100) == results  # same seed, same bits
    assert repeated.fit(corpora[0]).search(QUERIES, k=100) == before  # a second fit starts again
    with pytest.raises(UsageError, match="k=0"):
        method.search(QUERIES, k=0)
    with pytest.raises(UsageError, match="1 document is not in the index, 'nobody' first"):
        method.ranks(["x"], ["nobody"])
    with pytest.raises(DataError, match="holds no saved method"):
        type(method).load(tmp_path)


@pytest.mark.parametrize(("name", "changes"), REHEARSAL_FREE)
def test_rehearsal_free_methods_hold_no_text_of_an_earlier_corpus(
    name: str, changes: dict[str, Any], backbone: str, corpora: list[Corpus], tmp_path: Path
) -> None:
    method: Any = small.method(name, backbone, **changes)
    method.fit(corpora[0]).add(corpora[1])
    strings = reachable(method)
    texts = {text for corpus in corpora[:2] for document in corpus.documents for text in (document.text, document.title)}
    texts |= {query.text for corpus in corpora[:2] for query in corpus.queries}
    assert not strings & texts
    method.save(tmp_path / "saved")
    saved = b"".join(path.read_bytes() for path in (tmp_path / "saved").iterdir())
    assert not [text for text in texts if len(text) > 12 and text.encode() in saved]


@pytest.mark.parametrize(("name", "changes"), [*REHEARSAL_FREE, pytest.param("rehearsal", {}, id="rehearsal")])
def test_rehearsal_free_methods_hold_no_vector_of_an_old_query(
    name: str, changes: dict[str, Any], backbone: str, corpora: list[Corpus]
) -> None:
    method: Any = small.method(name, backbone, **changes)
    method.fit(corpora[0])
    old = query_vectors(method, corpora[0])
    method.add(corpora[1])
    assert holds(method, old) == (name == "rehearsal")  # which keeps them all: the test can fail
    if isinstance(method, PromptDSI):
        method.model_.strategy.null = unit(old[-1])
        assert holds(method, old)  # one vector in a strategy, as keys have it, would have been seen


def query_vectors(method: Any, corpus: Corpus) -> torch.Tensor:
    """The queries a method trained on: as it answers them, and as it chooses their prompts, where there are any (n, D)."""
    queries = method.training_pairs(corpus) if isinstance(method, DSIMethod) else [pair.query for pair in corpus.pairs("train")]
    texts = [query.text for query in queries]
    vectors = method.encode(texts, prompted=False)
    if isinstance(method, PromptDSI):
        ids = method.tokenizer_.encode(texts, max_tokens=method.encoding.max_tokens).ids
        vectors = torch.cat([vectors, selection_vectors(method.model_, ids, method.tokenizer_)])
    return vectors  # type: ignore[no-any-return]


def holds(method: Any, vectors: torch.Tensor) -> bool:
    """Whether a method leads to one of these vectors (n, D), at whatever length: keys and rows go by direction."""
    objects = (torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value for value in walk(method))
    tensors = [tensor.detach() for tensor in objects if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.is_floating_point()]
    rows = [tensor.reshape(-1, tensor.shape[-1]).to(vectors) for tensor in tensors if tensor.shape[-1] == vectors.shape[1]]
    exact = "donot_use_mm_for_euclid_dist"  # products would put equal vectors apart
    return any(bool((torch.cdist(unit(vectors), unit(row_block), compute_mode=exact) < 1e-5).any()) for row_block in rows)


def reachable(root: object) -> set[str]:
    """Every string an object leads to, as text, as bytes or in an array."""
    texts = (
        value if isinstance(value, str) else bytes(value).decode("utf-8", errors="replace")
        for value in walk(root)
        if isinstance(value, str | bytes | bytearray)
    )
    return set(texts)


def walk(root: object) -> Iterator[object]:
    """Every object an object leads to."""
    todo, seen = [root], {}
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value  # held, so that no other object gets its id
        yield value
        if isinstance(value, np.ndarray):
            todo += value.ravel().tolist() if value.dtype.kind in "OUS" else []
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            todo += list(value)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            todo += list(vars(value).values())


def test_no_way_of_holding_a_text_escapes() -> None:
    class Holder:
        def __init__(self, content: object) -> None:
            self.content_ = content

    for content in (
        "old",
        ["old"],
        {"old": 1},
        {1: {"old"}},
        b"old",
        [b"old"],
        np.array(["old"]),
        np.array([["old"]], dtype=object),
        Holder("old"),
    ):
        assert "old" in reachable(Holder(content)), content


def test_bm25_scores_are_lucenes(corpora: list[Corpus]) -> None:
    """Against the formula written out: idf = ln(1 + (N − n + .5) / (n + .5)), tf / (tf + k1 (1 − b + b · length / mean))."""
    from promptdsi.methods.bm25 import BM25, words_of

    method = BM25().fit(corpora[0]).add(corpora[1])
    documents = [document for corpus in corpora[:2] for document in corpus.documents]
    words = [words_of(f"{document.title} {document.text}") for document in documents]
    mean = np.mean([len(terms) for terms in words])
    query = "water light years of the telescope"
    expected = {}
    for document, terms in zip(documents, words, strict=True):
        score = 0.0
        for word in words_of(query):
            holding = sum(word in document_words for document_words in words)
            if holding:
                idf = np.log(1 + (len(words) - holding + 0.5) / (holding + 0.5))
                count = terms.count(word)
                score += idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(terms) / mean))
        expected[document.docid] = score
    result = method.search(query, k=100)[0]
    assert result.scores == pytest.approx([expected[docid] for docid in result.docids], abs=1e-4)
    assert result.docids == sorted(expected, key=lambda docid: (-result.scores[result.docids.index(docid)], docid))


def test_dense_is_the_backbone_as_it_is(backbone: str, corpora: list[Corpus]) -> None:
    """The library's own model, mean-pooled by hand, gives the same cosines."""
    import torch
    from transformers import AutoModel

    from promptdsi.methods.dense import Dense
    from promptdsi.methods.options import Encoding

    method = Dense(backbone=backbone, encoding=Encoding(max_tokens=64, document_tokens=60), device="cpu", offline=True).fit(corpora[0])
    model = AutoModel.from_pretrained(backbone).eval()

    def vector(text: str) -> Any:
        ids = torch.from_numpy(method.tokenizer_.encode([text], max_tokens=60).ids[0].astype("int64"))[None]
        with torch.no_grad():
            return torch.nn.functional.normalize(model(input_ids=ids).last_hidden_state.mean(1))[0]

    document = min(corpora[0].documents, key=lambda document: len(document.text))
    windows = method.tokenizer_.windows([f"{document.title}. {document.text}"], size=60, most=16)[0][0]
    with torch.no_grad():
        parts = [model(input_ids=torch.from_numpy(window.astype("int64"))[None]).last_hidden_state.mean(1)[0] for window in windows]
    mean_vector = torch.nn.functional.normalize(sum(torch.nn.functional.normalize(part, dim=0) for part in parts), dim=0)  # type: ignore[arg-type]
    result = method.search(QUERIES[0], k=100)[0]
    assert result.scores[result.docids.index(document.docid)] == pytest.approx(float(vector(QUERIES[0]) @ mean_vector), abs=1e-5)


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_hybrid_adds_coverage_to_cosines(weight: float, backbone: str, corpora: list[Corpus]) -> None:
    """Against the formula written out, passage by passage: idf and average length are those of D0's passages, for new ones too."""
    from promptdsi.corpus.split_words import split_words

    method = small.method("hybrid", backbone, **{"encoding.word_weight": weight})
    texts, docids = [], []
    for corpus in corpora[:2]:
        method.fit(corpus) if corpus is corpora[0] else method.add(corpus)
        passages = method.passages(corpus)
        texts += passages.texts_with_queries(corpus.pairs("train", kinds=("annotated",)))
        docids += passages.docids
    first = len(corpora[0].documents)
    assert method.model_.rows.docids == docids and len(docids) > len(set(docids)) > first  # some documents are several passages
    words = [split_words(text) for text in texts]
    frozen = words[: len(method.model_.rows.blocks[0])]
    mean = np.mean([len(terms) for terms in frozen])

    def idf(word: str) -> float:
        holding = sum(word in terms for terms in frozen)
        return float(np.log(1 + (len(frozen) - holding + 0.5) / (holding + 0.5)))

    rows = torch.cat(list(method.model_.rows.blocks)).double()
    for query, result in zip(QUERIES, method.search(QUERIES, k=100), strict=True):
        cosines, query_words = (rows @ method.encode([query])[0].double()).tolist(), split_words(query)
        expected: dict[str, float] = {}
        for docid, cosine, terms in zip(docids, cosines, words, strict=True):
            parts = [idf(word) * terms.count(word) / (terms.count(word) + 1.5 * (0.25 + 0.75 * len(terms) / mean)) for word in query_words]
            coverage = sum(parts) / sum(idf(word) for word in query_words) if query_words else 0.0
            expected[docid] = max(expected.get(docid, -9.0), cosine + weight * coverage)
        assert result.scores == pytest.approx([expected[docid] for docid in result.docids], abs=1e-5)
        assert result.scores == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert method.extra_bytes() >= 6 * sum(len(set(terms)) for terms in words)  # a passage and a count for every word


def test_rrf_is_the_sum_of_reciprocal_ranks(backbone: str, corpora: list[Corpus]) -> None:
    method = small.method("rrf", backbone).fit(corpora[0]).add(corpora[1])
    queries = [*QUERIES, "telescope bread"]
    by_rows, by_words = method.dense_.search(queries, k=100), method.bm25_.search(queries, k=100)
    assert method.bm25_.train_queries and len(method.dense_.model_.rows) > len(method.bm25_.docids_)  # dense has passages
    for number, result in enumerate(method.search(queries, k=100)):
        expected = {docid: 1 / (60 + rank) for rank, docid in enumerate(by_rows[number].docids, 1)}
        for rank, (docid, score) in enumerate(zip(*by_words[number], strict=True), 1):
            expected[docid] += 1 / (60 + rank) if score > 0 else 0.0
        assert result.docids == sorted(expected, key=lambda docid: (-expected[docid], docid))
        assert result.scores == [expected[docid] for docid in result.docids]
    assert method.search(["the"], k=100)[0].docids == method.dense_.search(["the"], k=100)[0].docids  # no word counts
    assert method.extra_bytes() == method.bm25_.extra_bytes() > 0
    with pytest.raises(UsageError, match="rank_constant=-1"):
        small.method("rrf", backbone, rank_constant=-1).fit(corpora[0])
