"""DPR: the loss against a softmax written out, BM25's hard negatives, and two towers of which the second encodes documents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from promptdsi import Corpus, Document, Judgement, Query
from promptdsi.corpus.corpus import whole_text
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.methods import dpr
from promptdsi.methods.bm25 import BM25
from promptdsi.methods.dpr import DPR, learn_towers, ranking_loss, tower_pairs, with_hard_negatives
from promptdsi.model.dsi import DSI
from promptdsi.model.prompts import make_strategy
from promptdsi.training import encoding
from promptdsi.training.examples import TrainingPair
from promptdsi.training.training import Training, TrainingLog

SMALL: dict[str, Any] = {"max_tokens": 24, "passage_tokens": 40, "batch_size": 8, "device": "cpu", "offline": True, "pooling": "mean"}
CLOSE: Any = {"atol": 1e-5, "rtol": 1e-4}


@pytest.fixture(scope="module")
def learned(corpora: list[Corpus], backbone: str) -> DPR:
    """Not to be changed: tests that add to it load a saved copy."""
    return DPR.from_params(SMALL | {"backbone": backbone, "fit_epochs": 10, "fit_lr": 5e-3, "dropout": 0.0}).fit(corpora[0])


def copied(method: DPR, folder: Path) -> DPR:
    method.save(folder / "saved")
    return DPR.load(folder / "saved")


def test_the_loss_is_a_softmax_over_positives_and_hard_negatives() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    positives = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    negatives = torch.tensor([[2.0, 1.0], [0.0, -1.0]])
    # Inner products with both positives, then both negatives: first query 3, 1, 2, 0; second 0, 2, 2, -2.
    first = -np.log(np.exp(3) / np.exp([3, 1, 2, 0]).sum())
    second = -np.log(np.exp(2) / np.exp([0, 2, 2, -2]).sum())
    assert float(ranking_loss()([queries, positives, negatives])) == pytest.approx((first + second) / 2)
    halved = -np.log(np.exp(1.5) / np.exp([1.5, 0.5]).sum()), -np.log(np.exp(1) / np.exp([0, 1]).sum())
    assert float(ranking_loss(0.5)([queries, positives])) == pytest.approx(np.mean(halved))


def step_of(monkeypatch: pytest.MonkeyPatch, *, dropout: float) -> tuple[Any, dpr.Towers, dpr.Triples, list[np.ndarray]]:
    """A training step, the towers it trains, its queries and the documents they are about."""
    tokenizer = tiny.tokenizer(["tea", "water", "owl", "night", "boat", "lock"])
    changes = {"dropout": dropout, "attention_dropout": dropout}
    towers = dpr.Towers(tiny.model(seed=1, encoder_changes=changes), tiny.model(seed=2, encoder_changes=changes), tokenizer)
    passages = tokenizer.encode(["tea water water night boat", "owl", "boat lock night", "lock tea owl"], max_tokens=16).ids
    triples = dpr.Triples(tokenizer.encode(["tea", "owl night owl", "boat"], max_tokens=16).ids, np.array([[0, 3], [1, 2], [2, 3]]))
    steps: list[Any] = []

    def hold(step: Any, *rest: Any, **keywords: Any) -> TrainingLog:
        steps.append(step)
        return TrainingLog()

    monkeypatch.setattr(dpr, "train", hold)
    learn_towers(towers, triples, passages, ranking_loss(), Training(epochs=1, lr=0.1, row_lr=0.0))
    return steps[0], towers, triples, passages


def test_a_step_is_the_loss_of_texts_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TOKENS_PER_BATCH", 8)  # several parts of different lengths
    step, towers, triples, passages = step_of(monkeypatch, dropout=0.0)
    assert towers.queries.training and towers.documents.training

    def vectors(tower: Any, texts: list[Any]) -> Tensor:
        return torch.cat([tower.unprompted(towers.tokenizer.pad([text])) for text in texts])

    batch = np.array([2, 0, 1])  # documents 2, 0 and 1, hard negatives 3, 3 and 2
    scores = (
        vectors(towers.queries, [triples.ids[number] for number in batch])
        @ vectors(towers.documents, [passages[number] for number in (2, 0, 1, 3, 3, 2)]).T
    )
    torch.testing.assert_close(step(batch), torch.nn.functional.cross_entropy(scores, torch.arange(3)), **CLOSE)


def test_running_layers_twice_changes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dropped states too are the same the second time."""
    step, towers, _, _ = step_of(monkeypatch, dropout=0.3)
    results = []
    for most in (dpr.STORED_TOKENS, 0):
        monkeypatch.setattr(dpr, "STORED_TOKENS", most)
        towers.queries.zero_grad()
        towers.documents.zero_grad()
        torch.manual_seed(5)
        loss = step(np.arange(3))
        loss.backward()
        gradients = [weight.grad for tower in (towers.queries, towers.documents) for weight in tower.encoder.parameters()]
        results.append([loss.detach(), *(gradient for gradient in gradients if gradient is not None)])
    torch.testing.assert_close(results[0], results[1], atol=0, rtol=0)


def test_hard_negatives_are_the_best_other_documents(corpora: list[Corpus]) -> None:
    corpus = corpora[0]
    pairs = tower_pairs(corpus, pseudo=1, seed=0)
    docids = [document.docid for document in corpus.documents]
    numbers = with_hard_negatives(corpus, pairs, count=2)
    assert numbers.shape == (len(pairs), 3)
    for pair, (positive, *negatives), ranked in zip(
        pairs, numbers, BM25().fit(corpus).search([pair.text for pair in pairs], k=100), strict=True
    ):
        assert docids[positive] == pair.docid
        assert [docids[number] for number in negatives] == [docid for docid in ranked.docids if docid != pair.docid][:2]


def test_a_second_right_answer_is_no_hard_negative() -> None:
    documents = [Document(docid, text) for docid, text in (("a", "green tea"), ("b", "black tea"), ("c", "tea cups"), ("d", "owls"))]
    corpus = Corpus(documents)
    pairs = [TrainingPair("green tea", "a"), TrainingPair("green tea", "c"), TrainingPair("owls", "d")]
    numbers = with_hard_negatives(corpus, pairs, count=1)
    assert numbers[:2].tolist() == [[0, 1], [2, 1]]  # b: of a and c neither
    assert with_hard_negatives(corpus, pairs, count=9).shape == (3, 3)  # four documents, two of them right: no more than two
    assert with_hard_negatives(corpus, pairs, count=0).tolist() == [[0], [2], [3]]


def test_pseudo_queries_are_used_where_no_query_is_annotated(corpora: list[Corpus]) -> None:
    texts = {query.queryid: query.text for query in corpora[0].queries}
    expected = [TrainingPair(texts[judgement.queryid], judgement.docid) for judgement in corpora[0].qrels["train"] if judgement.score > 0]
    assert tower_pairs(corpora[0], pseudo=1, seed=0) == expected
    pseudo = [Query(f"q{number}", "what else", "pseudo") for number in range(3)]
    documents = corpora[0].documents[:3]
    qrels = {"train": [Judgement(query.queryid, document.docid) for query, document in zip(pseudo, documents, strict=True)]}
    corpus = Corpus(documents, pseudo, qrels)
    assert tower_pairs(corpus, pseudo=1, seed=0) == [TrainingPair("what else", document.docid) for document in documents]
    one_annotated = Corpus(documents, [*pseudo, Query("q", "who")], {"train": [*qrels["train"], Judgement("q", documents[1].docid)]})
    assert tower_pairs(one_annotated, pseudo=1, seed=0) == [TrainingPair("who", documents[1].docid)]


def test_towers_start_equal_and_training_parts_them_and_helps(corpora: list[Corpus], backbone: str, learned: DPR) -> None:
    fresh = DPR.from_params(SMALL | {"backbone": backbone, "fit_epochs": 0}).fit(corpora[0])
    assert not tiny.snapshot(fresh.model_.encoder).keys() ^ fresh.tensors().keys()
    for name, weight in fresh.tensors().items():
        assert torch.equal(weight, fresh.model_.encoder.state_dict()[name])
    assert fresh.model_.encoder is not fresh.document_encoder_
    for name, weight in learned.tensors().items():
        other, start = learned.model_.encoder.state_dict()[name], fresh.tensors()[name]
        assert not torch.equal(weight, other) and not torch.equal(weight, start) and not torch.equal(other, start), name
    (log,) = learned.logs_
    assert np.mean(log.losses[-11:]) < 0.5 * np.mean(log.losses[:11])  # eleven steps an epoch
    pairs = tower_pairs(corpora[0], pseudo=1, seed=0)
    before, after = (method.ranks([pair.text for pair in pairs], [pair.docid for pair in pairs]) for method in (fresh, learned))
    assert (before <= 1).mean() < 0.2 and (after <= 1).mean() > 0.8


def test_the_document_tower_encodes_what_is_added_and_nothing_changes(corpora: list[Corpus], learned: DPR, tmp_path: Path) -> None:
    method = copied(learned, tmp_path)
    before = {**tiny.snapshot(method.model_), **{f"document.{name}": weight.clone() for name, weight in method.tensors().items()}}
    method.add(corpora[1])
    after = {**tiny.snapshot(method.model_), **{f"document.{name}": weight for name, weight in method.tensors().items()}}
    assert after.keys() - before.keys() == {"rows.blocks.1"}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    tower = DSI(method.document_encoder_, make_strategy("none"), pooling="mean").eval()
    for document, row in zip(corpora[1].documents, method.model_.rows.blocks[1], strict=True):
        ids = method.tokenizer_.encode([whole_text(document)], max_tokens=40).ids
        with torch.no_grad():
            torch.testing.assert_close(row.detach(), tower.unprompted(method.tokenizer_.pad(ids))[0], **CLOSE)
    assert not any(weight.requires_grad for weight in [*method.model_.parameters(), *method.document_encoder_.parameters()])
    assert len(method.logs_) == 2 and method.logs_[1].losses == []
    assert method.truncated_documents_ > 0 and method.trained_parameters() == 0
    assert method.extra_bytes() == 4 * sum(weight.numel() for weight in method.tensors().values())


def test_what_is_loaded_searches_and_adds_alike(corpora: list[Corpus], learned: DPR, tmp_path: Path) -> None:
    again = copied(learned, tmp_path)
    queries = ["how does it work", "what is water made of"]
    assert again.search(queries, k=30) == learned.search(queries, k=30)
    assert all(torch.equal(weight, learned.tensors()[name]) for name, weight in again.tensors().items())
    torch.testing.assert_close(again.document_vectors(corpora[1]), learned.document_vectors(corpora[1]), atol=0, rtol=0)


def test_what_cannot_be_done_is_said(corpora: list[Corpus], backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="hard_negatives=-1 is less than 0"):
        DPR.from_params(SMALL | {"backbone": backbone, "hard_negatives": -1}).fit(corpora[0])
    with pytest.raises(UsageError, match=r"max_tokens=65 but the backbone .* reads 3 to 64"):
        DPR.from_params(SMALL | {"backbone": backbone, "max_tokens": 65}).fit(corpora[0])
    for module in ("sentence_transformers", "sentence_transformers.sentence_transformer.losses"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PromptDSIError, match=r"pip install 'promptdsi\[dpr\]'"):
        DPR.from_params(SMALL | {"backbone": backbone}).fit(corpora[0])
    monkeypatch.setattr(dpr, "join", lambda: type("World", (), {"size": 2}))
    with pytest.raises(UsageError, match="without torchrun"):
        DPR.from_params(SMALL | {"backbone": backbone}).fit(corpora[0])
