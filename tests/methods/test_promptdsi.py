"""A contract every strategy keeps as a whole method, on a small local backbone and a slice of the demo corpus."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from all_strategies import ALL, PROMPTED

from promptdsi import Corpus, Judgement, Query
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.methods.options import merge_params, nest_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.path import unit
from promptdsi.training import stages
from promptdsi.training.encoding import selection_vectors
from promptdsi.training.examples import training_pairs_of
from promptdsi.training.training import Diverged


@pytest.fixture(scope="module")
def stream() -> list[Corpus]:
    """Forty documents and three later corpora of six."""
    return build_stream("demo", Request(), limit=58, new=3, share=0.1).corpora


@pytest.fixture(scope="module")
def backbone(stream: list[Corpus], tmp_path_factory: pytest.TempPathFactory) -> str:
    words = sorted({word for corpus in stream for query in corpus.queries for word in re.findall(r"\w+", query.text.lower())})
    return str(tiny.backbone_folder(tmp_path_factory.mktemp("backbone"), words))


@pytest.fixture(scope="module")
def quick(backbone: str) -> dict[str, Any]:
    """The preset `rows`, cut short."""
    changes = {
        "backbone": backbone,
        "fit": {"epochs": 2, "batch_size": 32},
        "add": {"epochs": 2, "batch_size": 32},
        "pseudo_queries": 1,
        "encoding": {"max_tokens": 24, "document_tokens": 48},
    }
    return merge_params(PRESETS["rows"], changes, {"device": "cpu", "offline": True})


def new_method(quick: dict[str, Any], name: str, **changes: Any) -> PromptDSI:
    options = {} if name == "none" else {"prompt_length": 4}
    return PromptDSI.from_params(merge_params(quick, {"prompts": name, "prompt_options": options}, nest_params(changes)))


def queries_and_docids(corpus: Corpus, split: str = "test") -> tuple[list[str], list[str]]:
    pairs = corpus.pairs(split)
    return [pair.query.text for pair in pairs], [pair.docid for pair in pairs]


@pytest.mark.parametrize("name", ALL)
def test_the_contract(name: str, quick: dict[str, Any], stream: list[Corpus], tmp_path: Path, no_network: None) -> None:
    method = new_method(quick, name)
    assert not hasattr(method, "model_")  # a constructor stores and stops
    assert PromptDSI.from_params(method.get_params()) == method
    assert method.fit(stream[0]) is method
    encoder, rows = tiny.snapshot(method.model_.encoder), method.model_.rows.blocks[0].detach().clone()
    earlier: dict[str, torch.Tensor] = {}
    for number, corpus in enumerate(stream[1:], 1):
        assert method.add(corpus) is method
        assert len(method.model_.rows) == sum(len(seen) for seen in stream[: number + 1])  # candidates: all seen, no more
        for key, tensor in earlier.items():  # frozen-encoder methods: everything old is bit-identical
            if name in ("s++", "coda", "nearest-corpus") or (key.startswith("keys.0") and name == "topic"):
                assert torch.equal(method.model_.strategy.state()[key], tensor), key
        earlier = {key: tensor.clone() for key, tensor in method.model_.strategy.state().items() if "mean" not in key}
    assert all(torch.equal(tensor, encoder[key]) for key, tensor in method.model_.encoder.state_dict().items())
    assert torch.equal(method.model_.rows.blocks[0], rows)
    assert method.model_.rows.docids[:3] == [document.docid for document in stream[0].documents[:3]]
    queries, docids = queries_and_docids(stream[0])
    results = method.search(queries, k=7)
    ranks = method.ranks(queries, docids)
    for result, rank, docid in zip(results, ranks, docids, strict=True):
        assert len(result.docids) == len(set(result.docids)) == 7 and result.scores == sorted(result.scores, reverse=True)
        assert (rank <= 7) == (docid in result.docids) and (rank > 7 or result.docids[rank - 1] == docid)
    alone = method.search(queries[:1], k=7)[0]
    assert alone.docids == results[0].docids and alone.scores == pytest.approx(results[0].scores, rel=1e-5)
    method.save(tmp_path / "saved")
    loaded = PromptDSI.load(tmp_path / "saved")
    assert loaded.get_params() == method.get_params()
    assert loaded.search(queries, k=7) == results
    assert not list((tmp_path / "saved").glob("*.p*kl*"))


@pytest.mark.parametrize("name", ALL)
def test_two_runs_with_one_seed_agree_and_another_seed_differs(name: str, quick: dict[str, Any], stream: list[Corpus]) -> None:
    methods = [new_method(quick, name, seed=seed).fit(stream[0]).add(stream[1]) for seed in (3, 3, 4)]
    queries, _ = queries_and_docids(stream[1])
    first, second, third = (method.search(queries) for method in methods)
    assert first == second != third


@pytest.mark.parametrize("name", ALL)
def test_after_a_load_the_next_corpus_is_learned_as_without_it(
    name: str, quick: dict[str, Any], stream: list[Corpus], tmp_path: Path
) -> None:
    method = new_method(quick, name).fit(stream[0]).add(stream[1])
    method.save(tmp_path / "saved")
    queries, _ = queries_and_docids(stream[2])
    assert PromptDSI.load(tmp_path / "saved").add(stream[2]).search(queries) == method.add(stream[2]).search(queries)


def test_whatever_goes_wrong_in_add_the_method_is_as_it_was(
    quick: dict[str, Any], stream: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("none", "s++", "l2p"):
        method = new_method(quick, name).fit(stream[0]).add(stream[1])
        queries, _ = queries_and_docids(stream[1])
        before, state = method.search(queries), method.model_.strategy.state()
        with monkeypatch.context() as patch:
            patch.setattr(stages, "cross_entropy", lambda *a, **k: torch.full((1,), float("nan"), requires_grad=True))
            patch.setattr(stages, "cross_entropy_given_old", lambda *a, **k: torch.full((1,), float("nan"), requires_grad=True))
            with pytest.raises(Diverged):
                method.add(stream[2])
        assert method.search(queries) == before and not method.model_.training
        assert all(torch.equal(tensor, state[key]) for key, tensor in method.model_.strategy.state().items())
        untouched = new_method(quick, name).fit(stream[0]).add(stream[1]).add(stream[2])
        assert method.add(stream[2]).search(queries) == untouched.search(queries)


def test_fit_goes_on_where_it_stopped_but_only_the_same_training(quick: dict[str, Any], stream: list[Corpus], tmp_path: Path) -> None:
    def interrupted(**changes: Any) -> None:
        real = stages.cross_entropy
        count = itertools.count()

        def stop_at_three(*arguments: Any, **keywords: Any) -> Any:
            if next(count) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return real(*arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stages, "cross_entropy", stop_at_three)
            with pytest.raises(KeyboardInterrupt):
                new_method(quick, "none", **changes).fit(stream[0], checkpoint=tmp_path / "training")

    queries, _ = queries_and_docids(stream[0])
    plain = new_method(quick, "none", **{"encoding.dropout": 0.2}).fit(stream[0])
    interrupted(**{"encoding.dropout": 0.2})
    (tmp_path / "training/thesis.txt").write_text("mine")
    resumed = new_method(quick, "none", **{"encoding.dropout": 0.2}).fit(stream[0], checkpoint=tmp_path / "training")
    assert resumed.search(queries) == plain.search(queries)
    assert resumed.logs_[0].losses == plain.logs_[0].losses and resumed.logs_[0].examples == plain.logs_[0].examples
    assert [path.name for path in (tmp_path / "training").iterdir()] == ["thesis.txt"]
    for change in ({"fit.lr": 1e-3}, {"encoding.scale": 5.0}, {"encoding.dropout": 0.3}, {"fit.row_decay": 0.5}):
        changes = {"encoding.dropout": 0.2} | change
        interrupted(**{"encoding.dropout": 0.2})
        other = new_method(quick, "none", **changes).fit(stream[0], checkpoint=tmp_path / "training")
        assert other.search(queries) == new_method(quick, "none", **changes).fit(stream[0]).search(queries), changes


def test_topic_keys_come_from_the_queries_of_each_topics_documents(quick: dict[str, Any], stream: list[Corpus], tmp_path: Path) -> None:
    method = new_method(quick, "topic").fit(stream[0])
    assert method.topics_ is not None
    queries = training_pairs_of(stream[0], pseudo=1, seed=0)
    label = dict(zip([document.docid for document in stream[0].documents], method.topics_.labels.tolist(), strict=True))
    ids = method.tokenizer_.encode([pair.text for pair in queries], max_tokens=24).ids
    vectors = unit(selection_vectors(method.model_, ids, method.tokenizer_))
    for number, key in enumerate(method.model_.strategy.keys[0]):
        in_topic = torch.tensor([label[pair.docid] == number for pair in queries])
        torch.testing.assert_close(key, vectors[in_topic].mean(0), atol=1e-5, rtol=1e-4)
    method.save(tmp_path)
    loaded = PromptDSI.load(tmp_path, device="cpu")
    assert loaded.topics_ is not None and loaded.topics_.words == method.topics_.words


def test_pairs_given_by_the_caller_are_trained_on_and_never_built_again(
    quick: dict[str, Any], stream: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every strategy that reads D0's queries again, and for rows that begin as their queries' mean."""
    queries, _ = queries_and_docids(stream[1])
    for name, row_init in (("none", "document"), ("none", "queries"), ("topic", "document")):
        changes = {"fit": {"row_init": row_init}, "add": {"row_init": row_init}}
        method, plain = new_method(quick, name, **changes), new_method(quick, name, **changes)
        first, second = method.training_pairs(stream[0]), method.training_pairs(stream[1], new=True)
        expected = plain.fit(stream[0]).add(stream[1]).search(queries)
        with monkeypatch.context() as patch:
            patch.setattr(PromptDSI, "training_pairs", None)
            assert method.fit(stream[0], pairs=first).add(stream[1], pairs=second).search(queries) == expected
            method.add(stream[2], train=False)
        assert method.tune(stream[2], pairs=method.training_pairs(stream[2], new=True)).logs_[-1].losses


def test_a_removed_option_is_dropped_if_it_had_no_effect_and_stops_training_if_it_had(
    quick: dict[str, Any], stream: list[Corpus], tmp_path: Path
) -> None:
    neutral = {"stand_ins": 0, "stand_in_range": [0.2, 0.3], "stand_in_weight": 2.0, "add_sharpness": 1.0, "add_pseudo_factor": 1}
    assert PromptDSI.from_params(quick | neutral) == PromptDSI.from_params(quick)
    assert "retired" not in PromptDSI.from_params(quick | neutral).get_params()
    for option, value in (("stand_ins", 16), ("add_sharpness", 1.5), ("add_pseudo_factor", 2)):
        method = PromptDSI.from_params(merge_params(quick, {"fit": {"epochs": 0}, option: value})).fit(stream[0])
        method.save(tmp_path / option)
        loaded = PromptDSI.load(tmp_path / option)
        assert loaded.get_params()["retired"] == {option: value} and loaded.search(["water"]) == method.search(["water"])
        with pytest.raises(UsageError, match=f"made with {option}={value}, which was removed"):
            loaded.add(stream[1])
        assert len(loaded.add(stream[1], train=False).model_.rows) == len(stream[0]) + len(stream[1])
        with pytest.raises(UsageError, match="create it anew"):
            loaded.tune(stream[1])


def test_an_old_query_meets_new_rows(quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = new_method(quick, "none").fit(stream[0])
    queries, docids = queries_and_docids(stream[0])
    method.add(stream[1])
    before = method.ranks(queries[:1], docids[:1])[0]
    with torch.no_grad():
        method.model_.rows.blocks[1][0] = 100 * method.encode(queries[:1])[0]
        method.model_.rows._merged = (0, [])
    assert method.ranks(queries[:1], docids[:1])[0] == before + 1
    assert method.search(queries[:1])[0].docids[0] == stream[1].documents[0].docid


def test_the_title_is_part_of_the_document(quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = new_method(quick, "none", **{"fit.epochs": 0}).fit(stream[0])
    document = stream[1].documents[0]
    twins = Corpus([document, document._replace(docid="other", title="a planet far away")])
    first, second = method.initial_rows(twins, "document", norm=1.0)
    assert not torch.allclose(first, second)


def test_it_learns(quick: dict[str, Any], stream: list[Corpus]) -> None:
    """On its own training queries: far better than chance after D0, and the new corpus is found after it was added."""
    free = {"rows.fix_row_norm": False, "add.row_lr": 0.05, "add.epochs": 40}  # a random encoder needs room to tell queries apart
    method = new_method(quick, "none", **{"fit.epochs": 12, "fit.lr": 1e-3, "fit.row_lr": 1e-2} | free).fit(stream[0])
    ranks = method.ranks(*queries_and_docids(stream[0], "train"))
    assert (ranks <= 5).mean() > 0.5  # chance: 5 of 40
    method.add(stream[1])
    assert (method.ranks(*queries_and_docids(stream[1], "train")) <= 5).mean() > 0.3
    log = method.logs_[0]
    assert np.mean(log.losses[-3:]) < np.mean(log.losses[:3]) and log.examples == 12 * len(stream[0].pairs("train")) + 12 * len(stream[0])


@pytest.mark.parametrize("name", PROMPTED)
@pytest.mark.parametrize(
    "changes",
    [
        {"selection": "two-pass"},
        {"prefix_space": "pre"},
        {"rows.softmax_scope": "new_only"},
        {"prompt_options": {"prompt_layers": (1, 2), "prompt_length": 4}},
    ],
    ids=["two-pass", "pre", "new-only", "two-layers"],
)
def test_options_of_prompts_and_rows_run(name: str, changes: dict[str, Any], quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = new_method(quick, name, **{"fit.epochs": 1, "add.epochs": 1} | changes).fit(stream[0]).add(stream[1])
    assert len(method.search(["how does it work"], k=3)[0].docids) == 3


@pytest.mark.parametrize("start", ["random", "queries", "document"])
def test_initial_rows(start: str, quick: dict[str, Any], stream: list[Corpus]) -> None:
    rows = {"row_norm": "mean", "row_norm_scale": 1.0, "fix_row_norm": start != "random"}
    method = (
        new_method(quick, "none", fit={"row_init": start}, add={"row_init": start, "epochs": 0}, rows=rows).fit(stream[0]).add(stream[1])
    )
    if start == "random":
        assert 0.9 < method.model_.rows.blocks[1].abs().max() * method.model_.rows.width**0.5 <= 1
    else:
        norms = method.model_.rows.blocks[1].norm(dim=1)
        torch.testing.assert_close(norms, torch.full_like(norms, method.row_norm_), atol=1e-4, rtol=1e-4)


def test_fixed_row_norms_stay_and_free_ones_do_not(quick: dict[str, Any], stream: list[Corpus]) -> None:
    faster = {"epochs": 5, "row_lr": 0.1}
    for name in ("none", "s++"):
        fixed = new_method(quick, name, add=faster, rows={"row_norm": "mean", "row_norm_scale": 1.0}).fit(stream[0]).add(stream[1])
        norms = fixed.model_.rows.blocks[1].norm(dim=1)
        torch.testing.assert_close(norms, torch.full_like(norms, fixed.row_norm_), atol=1e-4, rtol=1e-4)
    free = new_method(quick, "none", add=faster, rows={"fix_row_norm": False}).fit(stream[0]).add(stream[1])
    assert (free.model_.rows.blocks[1].norm(dim=1) - free.row_norm_).abs().max() > 0.05


def test_pseudo_queries_only_uses_no_annotated_query_of_a_new_corpus(quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = new_method(quick, "none", new_corpus_queries="gen").fit(stream[0])
    stripped = Corpus(stream[1].documents, name="d1")
    queries, _ = queries_and_docids(stream[1])
    assert new_method(quick, "none", new_corpus_queries="gen").fit(stream[0]).add(stripped).search(queries) == method.add(stream[1]).search(
        queries
    )


@pytest.mark.parametrize(("queries", "counts"), [("gen", False), ("gen+train", True)])
def test_words_of_annotated_queries_count_only_where_such_queries_may_be_used(
    queries: str, counts: bool, quick: dict[str, Any], stream: list[Corpus]
) -> None:
    changes = {"encoding": {"words": True}, "fit": {"learn": "nothing"}, "new_corpus_queries": queries}
    method = PromptDSI.from_params(merge_params(quick, changes, {"prompts": "none"})).fit(stream[0])
    new = Corpus(stream[1].documents, [Query("q", "zyzzyva")], {"train": [Judgement("q", stream[1].documents[0].docid)]})
    method.add(new)
    assert method.words_ is not None and (method.words_.parts[-1].terms.find([b"zyzzyva"])[0] >= 0) == counts


def test_the_paper_preset_runs_with_its_defaults(backbone: str, stream: list[Corpus]) -> None:
    params = PromptDSI().get_params()
    assert (params["prompts"], params["fit"]["epochs"], params["add"]["epochs"]) == ("s++", 20, 10)
    assert (params["encoding"]["max_tokens"], params["encoding"]["pooling"]) == (32, "first")
    small = {"encoding": {"document_tokens": 48}, "fit": {"epochs": 1}, "add": {"epochs": 1}, "backbone": backbone}
    method = PromptDSI.from_params(small | {"device": "cpu", "offline": True}).fit(stream[0]).add(stream[1])
    assert len(method.search(["x"])[0].docids) == 10


def test_mistakes_are_said(quick: dict[str, Any], stream: list[Corpus], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fit.row_init='moon' is none of random, document, queries"):
        new_method(quick, "none", fit={"row_init": "moon"}).fit(stream[0])
    with pytest.raises(UsageError, match=r"max_tokens=512 but the backbone .* reads 3 to 64"):
        new_method(quick, "none", encoding={"max_tokens": 512}).fit(stream[0])
    with pytest.raises(PromptDSIError, match="have no query to learn from"):
        new_method(quick, "none", pseudo_queries=0).fit(Corpus(stream[0].documents))
    for changes, says in (
        ({"rows": {"softmax_scope": "new-only"}}, "softmax_scope='new-only' is none of"),
        ({"new_corpus_queries": "train+gen"}, "new_corpus_queries='train\\+gen' is none of"),
        ({"prompts": "s++", "prompt_options": {"key_update": "closed"}}, "key_update='closed' is none of"),
        ({"prompts": "l2p", "prompt_options": {"prompt_init": "smal"}}, "prompt_init='smal' is none of"),
        ({"prompts": "l2p", "prompt_options": {"prompt_length": 5}}, "must be even"),
        ({"device": "gpu"}, "no device 'gpu'"),
    ):
        with pytest.raises(UsageError, match=says):
            PromptDSI.from_params(merge_params(quick, changes)).fit(stream[0])
    method = new_method(quick, "none", **{"fit.epochs": 0}).fit(stream[0])
    with pytest.raises(UsageError, match="k=0"):
        method.search(["x"], k=0)
    with pytest.raises(UsageError, match="1 document is not in the index, 'nobody' first"):
        method.ranks(["x"], ["nobody"])
    assert method.search([]) == [] and len(method.ranks([], [])) == 0
    assert method.search("jet stream")[0] == method.search(["jet stream"])[0]  # one text is one query, not many letters
    with pytest.raises(DataError, match="holds no saved method"):
        PromptDSI.load(tmp_path)


def test_prompts_of_no_length_are_the_control_that_trains_rows_with_dropout(quick: dict[str, Any], stream: list[Corpus]) -> None:
    texts = [pair.query.text for pair in stream[0].pairs("test")]
    empty, rows = new_method(quick, "s++"), new_method(quick, "none")
    empty.prompt_options = {"prompt_length": 0}
    for method in (empty, rows):
        method.fit(stream[0]).add(stream[1])
    assert torch.equal(empty.encode(texts), rows.encode(texts))  # a query is encoded as without prompts
    assert not torch.equal(empty.model_.rows.blocks[-1], rows.model_.rows.blocks[-1])  # but rows were trained with dropout
    assert empty.model_.strategy.sizes()["prompts"] == 0
