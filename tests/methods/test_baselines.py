"""The paper's other systems: what each trains on, what it may change, and that all can begin from one D0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small
import tiny
import torch

from promptdsi import Corpus
from promptdsi.corpus.corpus import merge_corpora
from promptdsi.errors import UsageError
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.training import stages
from promptdsi.training.examples import Examples, training_pairs_of

DSI_METHODS = [name for name, kind in methods().items() if issubclass(kind, DSIMethod)]
FROZEN = ["promptdsi", "rows", "rehearsal", "incdsi", "incdsi*"]
WHOLE_MODEL = ["sequential", "dsi++", "multi", "joint"]


@pytest.fixture(scope="module")
def d0(backbone: str, corpora: list[Corpus]) -> Any:
    return small.method("rows", backbone).fit(corpora[0])


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Examples]:
    """The examples every training of the whole model was given."""
    seen: list[Examples] = []

    def watched(model: Any, examples: Examples, *rest: Any, **keywords: Any) -> Any:
        seen.append(examples)
        return stages.learn_everything(model, examples, *rest, **keywords)

    monkeypatch.setattr("promptdsi.methods.sequential.learn_everything", watched)
    return seen


def targets(method: Any, examples: Examples) -> list[str]:
    return [method.model_.rows.docids[row] for row in examples.targets.tolist()]


@pytest.mark.parametrize("name", DSI_METHODS)
def test_all_begin_from_the_same_d0_and_leave_it_alone(name: str, backbone: str, corpora: list[Corpus], d0: Any) -> None:
    before = tiny.snapshot(d0.model_)
    method = small.method(name, backbone, seed=5).begin_from(d0, corpora[0])
    if name != "analytic":  # it computes D0's rows anew
        assert method.search(small.QUERIES, k=50) == d0.search(small.QUERIES, k=50)
    method.add(corpora[1])
    for key, tensor in tiny.snapshot(d0.model_).items():
        assert torch.equal(tensor, before[key]), key
    with pytest.raises(UsageError, match=r"encoding.max_tokens=12, but D0 was learned with 24"):
        small.method(name, backbone, max_tokens=12).begin_from(d0, corpora[0])


@pytest.mark.parametrize("name", DSI_METHODS)
def test_beginning_from_a_d0_is_the_same_as_learning_it(name: str, backbone: str, corpora: list[Corpus], d0: Any) -> None:
    learned, taken = small.method(name, backbone).fit(corpora[0]), small.method(name, backbone).begin_from(d0, corpora[0])
    for method in (learned, taken):
        method.add(corpora[1])
    assert learned.search(small.QUERIES, k=50) == taken.search(small.QUERIES, k=50)


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_methods_change_nothing_old(name: str, backbone: str, corpora: list[Corpus], d0: Any) -> None:
    method = small.method(name, backbone).begin_from(d0, corpora[0]).add(corpora[1])
    encoder, rows = tiny.snapshot(method.model_.encoder), [block.detach().clone() for block in method.model_.rows.blocks]
    method.add(corpora[2])
    assert all(torch.equal(tensor, encoder[key]) for key, tensor in tiny.snapshot(method.model_.encoder).items())
    assert all(torch.equal(block, before) for block, before in zip(method.model_.rows.blocks, rows, strict=False))


@pytest.mark.parametrize("name", WHOLE_MODEL)
def test_whole_model_methods_train_every_weight(name: str, backbone: str, corpora: list[Corpus], d0: Any) -> None:
    method = small.method(name, backbone).begin_from(d0, corpora[0])
    encoder, rows = tiny.snapshot(method.model_.encoder), method.model_.rows.blocks[0].detach().clone()
    method.add(corpora[1])
    after = tiny.snapshot(method.model_.encoder)
    for name in ("word.weight", "layers.0.query_key_value.weight"):
        assert not torch.equal(after[name], encoder[name]), name
    assert not torch.equal(method.model_.rows.blocks[0][: len(rows)], rows)
    assert not any(weight.requires_grad for weight in method.model_.parameters())  # frozen again until the next corpus
    size = sum(weight.numel() for weight in method.model_.encoder.parameters())
    assert method.trained_parameters() == size + len(method.model_.rows) * method.model_.rows.width


def test_sequential_trains_on_the_new_corpus_alone(backbone: str, corpora: list[Corpus], d0: Any, trained_on: list[Examples]) -> None:
    method = small.method("sequential", backbone).begin_from(d0, corpora[0]).add(corpora[1]).add(corpora[2])
    assert [set(targets(method, examples)) for examples in trained_on] == [{d.docid for d in corpus.documents} for corpus in corpora[1:3]]
    assert method.extra_bytes() == 0


def test_dsi_plus_plus_replays_one_pseudo_query_of_a_share_of_the_earlier_documents(
    backbone: str, corpora: list[Corpus], d0: Any, trained_on: list[Examples]
) -> None:
    method = small.method("dsi++", backbone, replay=0.25, pseudo_queries=3).begin_from(d0, corpora[0]).add(corpora[1]).add(corpora[2])
    pseudo = {(pair.docid, pair.text) for corpus in corpora[:2] for pair in training_pairs_of(corpus, pseudo=3, seed=0, annotated=False)}
    for step, examples in enumerate(trained_on, 1):
        earlier = [document.docid for corpus in corpora[:step] for document in corpus.documents]
        replayed = [docid for docid in targets(method, examples) if docid in set(earlier)]
        assert len(replayed) == len(set(replayed)) == round(0.25 * len(earlier))
    texts = {text for _, text in pseudo} | {
        text for _, text in {(pair.docid, pair.text) for pair in training_pairs_of(corpora[2], pseudo=3, seed=0, annotated=False)}
    }
    assert {pair.text for pair in method.replay_} == texts  # pseudo-queries only, of all corpora so far
    replayed_pairs = small.method("dsi++", backbone, replay=0.25, pseudo_queries=3, seed=0).begin_from(d0, corpora[0]).replayed()
    assert all((pair.docid, pair.text) in pseudo for pair in replayed_pairs)
    assert method.extra_bytes() == sum(len(pair.text.encode()) + len(pair.docid.encode()) for pair in method.replay_)


def test_multi_and_joint_learn_the_new_corpora_together(backbone: str, corpora: list[Corpus], d0: Any, trained_on: list[Examples]) -> None:
    merged = merge_corpora(corpora[1:], "all")
    multi = small.method("multi", backbone).begin_from(d0, corpora[0]).add(merged)
    joint = small.method("joint", backbone).begin_from(d0, corpora[0]).add(merged)
    new = {document.docid for document in merged.documents}
    assert set(targets(multi, trained_on[0])) == new
    assert set(targets(joint, trained_on[1])) == new | {document.docid for document in corpora[0].documents}
    assert multi.at_once and joint.at_once and not methods()["sequential"].at_once
    assert len(trained_on[1].ids) == len(trained_on[0].ids) + len(joint.training_pairs(corpora[0]))


def test_the_union_of_corpora_holds_each_document_and_query_once(corpora: list[Corpus]) -> None:
    merged = merge_corpora(corpora[1:], "all")
    assert merged.documents == [document for corpus in corpora[1:] for document in corpus.documents]
    assert len({query.queryid for query in merged.queries}) == len(merged.queries)
    assert sorted(merged.pairs("train")) == sorted(pair for corpus in corpora[1:] for pair in corpus.pairs("train"))


def test_rehearsal_draws_real_old_queries_and_labels_them_right(backbone: str, corpora: list[Corpus], d0: Any) -> None:
    method = small.method("rehearsal", backbone, rehearsed=40).begin_from(d0, corpora[0]).add(corpora[1])
    old = method.old_queries()
    assert old.size == 40
    points, labels = old.vectors[::7], old.targets[::7]
    pairs = [*method.training_pairs(corpora[0]), *method.training_pairs(corpora[1], new=True)]
    vectors = method.encode([pair.text for pair in pairs])
    assert len(old.vectors) == len(pairs)
    for point, label in zip(points, labels.tolist(), strict=True):
        near = (vectors - point).norm(dim=1).argmin()
        assert torch.allclose(vectors[near], point, atol=1e-5) and method.model_.rows.docids[label] in {
            pair.docid for pair, vector in zip(pairs, vectors, strict=True) if torch.allclose(vector, point, atol=1e-5)
        }


@pytest.mark.parametrize("name", WHOLE_MODEL)
def test_a_failed_add_leaves_the_method_as_it_was(
    name: str, backbone: str, corpora: list[Corpus], d0: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = small.method(name, backbone).begin_from(d0, corpora[0])
    before = method.search(small.QUERIES, k=50)

    def broken(model: Any, *rest: Any, **keywords: Any) -> Any:
        model.encoder.word.weight.data.zero_()
        raise RuntimeError("no more memory")

    monkeypatch.setattr("promptdsi.methods.sequential.learn_everything", broken)
    with pytest.raises(RuntimeError, match="no more memory"):
        method.add(corpora[1])
    assert method.search(small.QUERIES, k=50) == before
    monkeypatch.undo()
    assert method.add(corpora[1]).search(small.QUERIES, k=50) != before


def test_bm25_finds_a_document_by_its_train_queries_too(corpora: list[Corpus]) -> None:
    from promptdsi.methods.bm25 import BM25

    pair = corpora[0].pairs("train", kinds=("annotated",))[0]
    plain, expanded = BM25().fit(corpora[0]), BM25(train_queries=True).fit(corpora[0])
    assert expanded.search(pair.query.text, k=1)[0].docids == [pair.docid]
    assert expanded.search(pair.query.text, k=1)[0].scores[0] > plain.search(pair.query.text, k=1)[0].scores[0]


def test_incdsi_rows_solve_the_problem_as_it_is_written(backbone: str, corpora: list[Corpus], d0: Any, tmp_path: Path) -> None:
    """The problem written out: the gradient of the objective is zero at each row, documents strictly one after the other."""
    method = small.method("incdsi", backbone, weight=0.4, margin_new=0.3, margin_old=0.2, ridge=1e-3).begin_from(d0, corpora[0])
    present, means = method.model_.rows.blocks[0].detach().double(), method.encoding.scale * method.means_.double()
    pairs = method.training_pairs(corpora[1], new=True)
    method.add(corpora[1])
    for document, row in zip(corpora[1].documents, method.model_.rows.blocks[1].detach().double(), strict=True):
        vectors = method.encode([pair.text for pair in pairs if pair.docid == document.docid]).double()
        query = method.encoding.scale * vectors.mean(0)
        x = row.clone().requires_grad_(True)
        gain = torch.relu((present @ query).max() + 0.3 - query @ x) ** 2
        harm = (torch.relu(means @ x - (present * means).sum(1) + 0.2) ** 2).sum()
        (0.4 * gain + 0.6 * harm + 1e-3 * x @ x).backward()
        assert x.grad is not None and float(x.grad.norm()) < 1e-4 * max(1.0, float(query.norm()) ** 2)
        present, means = torch.cat([present, row[None]]), torch.cat([means, query[None]])
    assert torch.allclose(method.means_ * method.encoding.scale, means.float(), atol=1e-5)
    assert method.extra_bytes() == 4 * method.means_.numel()


def test_incdsi_searches_its_settings_on_held_out_documents(backbone: str, corpora: list[Corpus], d0: Any) -> None:
    method = small.method("incdsi", backbone).begin_from(d0, corpora[0])
    rows = len(method.model_.rows)
    report = method.search_settings(corpora[0], corpora[2], trials=4, fixed={"weight": 0.3})
    assert len(report["tried"]) == 4 and {trial["weight"] for trial in report["tried"]} == {0.3}
    best = max(report["tried"], key=lambda trial: trial["both"])
    assert report["chosen"] == {key: best[key] for key in ("weight", "margin_new", "margin_old", "ridge")}
    assert (method.add_options.weight, method.add_options.margin_new) == (0.3, best["margin_new"])
    assert len(method.model_.rows) == rows == len(method.means_)  # held-out documents are not kept
    again = (
        small.method("incdsi", backbone).begin_from(d0, corpora[0]).search_settings(corpora[0], corpora[2], trials=4, fixed={"weight": 0.3})
    )
    assert again == report
