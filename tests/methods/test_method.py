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

from promptdsi import Corpus
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.arrays import unit
from promptdsi.training import stages
from promptdsi.training.encoding import selection_vectors
from promptdsi.training.examples import training_pairs_of
from promptdsi.training.topics import mine_topics
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
    """The preset `best`, cut short."""
    changes = {
        "backbone": backbone,
        "fit_epochs": 2,
        "add_epochs": 2,
        "pseudo_queries": 1,
        "max_tokens": 24,
        "document_tokens": 48,
        "stand_ins": 16,
    }
    return PRESETS["best"] | changes | {"device": "cpu", "offline": True, "batch_size": 32}


def made(quick: dict[str, Any], name: str, **changes: Any) -> PromptDSI:
    options = {} if name == "none" else {"prompt_length": 4}
    return PromptDSI(**(quick | {"prompts": name, "prompt_options": options} | changes))


def asked(corpus: Corpus, split: str = "test") -> tuple[list[str], list[str]]:
    pairs = corpus.pairs(split)
    return [pair.query.text for pair in pairs], [pair.docid for pair in pairs]


@pytest.mark.parametrize("name", ALL)
def test_the_contract(name: str, quick: dict[str, Any], stream: list[Corpus], tmp_path: Path, no_network: None) -> None:
    method = made(quick, name)
    assert not hasattr(method, "model_")  # a constructor stores and stops
    assert PromptDSI(**method.get_params()) == method
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
    queries, docids = asked(stream[0])
    found = method.search(queries, k=7)
    ranks = method.ranks(queries, docids)
    for result, rank, docid in zip(found, ranks, docids, strict=True):
        assert len(result.docids) == len(set(result.docids)) == 7 and result.scores == sorted(result.scores, reverse=True)
        assert (rank <= 7) == (docid in result.docids) and (rank > 7 or result.docids[rank - 1] == docid)
    alone = method.search(queries[:1], k=7)[0]
    assert alone.docids == found[0].docids and alone.scores == pytest.approx(found[0].scores, rel=1e-5)
    method.save(tmp_path / "saved")
    loaded = PromptDSI.load(tmp_path / "saved")
    assert loaded.get_params() == method.get_params()
    assert loaded.search(queries, k=7) == found
    assert not list((tmp_path / "saved").glob("*.p*kl*"))


@pytest.mark.parametrize("name", ALL)
def test_two_runs_with_one_seed_agree_and_another_seed_differs(name: str, quick: dict[str, Any], stream: list[Corpus]) -> None:
    methods = [made(quick, name, seed=seed).fit(stream[0]).add(stream[1]) for seed in (3, 3, 4)]
    queries, _ = asked(stream[1])
    first, second, third = (method.search(queries) for method in methods)
    assert first == second != third


@pytest.mark.parametrize("name", ALL)
def test_after_a_load_the_next_corpus_is_learned_as_without_it(
    name: str, quick: dict[str, Any], stream: list[Corpus], tmp_path: Path
) -> None:
    method = made(quick, name).fit(stream[0]).add(stream[1])
    method.save(tmp_path / "saved")
    queries, _ = asked(stream[2])
    assert PromptDSI.load(tmp_path / "saved").add(stream[2]).search(queries) == method.add(stream[2]).search(queries)


def test_whatever_goes_wrong_in_add_the_method_is_as_it_was(
    quick: dict[str, Any], stream: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("none", "s++", "l2p"):
        method = made(quick, name).fit(stream[0]).add(stream[1])
        queries, _ = asked(stream[1])
        before, state = method.search(queries), method.model_.strategy.state()
        with monkeypatch.context() as patch:
            patch.setattr(stages, "cross_entropy", lambda *a, **k: torch.full((1,), float("nan"), requires_grad=True))
            patch.setattr(stages, "cross_entropy_given_old", lambda *a, **k: torch.full((1,), float("nan"), requires_grad=True))
            with pytest.raises(Diverged):
                method.add(stream[2])
        assert method.search(queries) == before and not method.model_.training
        assert all(torch.equal(tensor, state[key]) for key, tensor in method.model_.strategy.state().items())
        untouched = made(quick, name).fit(stream[0]).add(stream[1]).add(stream[2])
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
                made(quick, "none", **changes).fit(stream[0], checkpoint=tmp_path / "training")

    queries, _ = asked(stream[0])
    plain = made(quick, "none", dropout=0.2).fit(stream[0])
    interrupted(dropout=0.2)
    (tmp_path / "training/thesis.txt").write_text("mine")
    resumed = made(quick, "none", dropout=0.2).fit(stream[0], checkpoint=tmp_path / "training")
    assert resumed.search(queries) == plain.search(queries)
    assert resumed.logs_[0].losses == plain.logs_[0].losses and resumed.logs_[0].examples == plain.logs_[0].examples
    assert [path.name for path in (tmp_path / "training").iterdir()] == ["thesis.txt"]
    for changes in ({"fit_lr": 1e-3}, {"scale": 5.0}, {"dropout": 0.3}, {"row_decay": 0.5}):
        interrupted(dropout=0.2)
        other = made(quick, "none", **({"dropout": 0.2} | changes)).fit(stream[0], checkpoint=tmp_path / "training")
        assert other.search(queries) == made(quick, "none", **({"dropout": 0.2} | changes)).fit(stream[0]).search(queries), changes


def test_topic_keys_come_from_the_queries_of_each_topics_documents(quick: dict[str, Any], stream: list[Corpus], tmp_path: Path) -> None:
    method = made(quick, "topic").fit(stream[0])
    assert method.topics_ is not None
    queries = training_pairs_of(stream[0], pseudo=1, seed=0)
    label = dict(zip([document.docid for document in stream[0].documents], method.topics_.labels.tolist(), strict=True))
    ids = method.tokenizer_.encode([one.text for one in queries], max_tokens=24).ids
    vectors = unit(selection_vectors(method.model_, ids, method.tokenizer_))
    for number, key in enumerate(method.model_.strategy.keys[0]):
        own = torch.tensor([label[one.docid] == number for one in queries])
        torch.testing.assert_close(key, vectors[own].mean(0), atol=1e-5, rtol=1e-4)
    method.save(tmp_path)
    loaded = PromptDSI.load(tmp_path, device="cpu")
    assert loaded.topics_ is not None and loaded.topics_.words == method.topics_.words


def test_new_documents_may_bring_more_pseudo_queries(quick: dict[str, Any], stream: list[Corpus], monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[tuple[int, stages.Softmax]] = []
    rows = stages.learn_rows

    def watched(model: Any, examples: Any, *rest: Any, **options: Any) -> Any:
        learned.append((len(examples.ids), rest[4]))
        return rows(model, examples, *rest, **options)

    monkeypatch.setattr("promptdsi.methods.promptdsi.learn_rows", watched)
    method = made(quick, "none", pseudo_queries=2, add_pseudo_factor=3, add_sharpness=1.5, scale=8.0, new_corpus_queries="gen")
    method.fit(stream[0]).add(stream[1])
    annotated = len(stream[0].pairs("train", kinds=("annotated",)))
    assert len(method.training_pairs(stream[0])) == annotated + 2 * len(stream[0])
    assert learned == [(6 * len(stream[1]), stages.Softmax(12.0))]
    assert method.model_.scale == 8.0  # search scores as before


def test_an_old_query_meets_new_rows(quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = made(quick, "none").fit(stream[0])
    queries, docids = asked(stream[0])
    method.add(stream[1])
    before = method.ranks(queries[:1], docids[:1])[0]
    with torch.no_grad():
        method.model_.rows.blocks[1][0] = 100 * method.encode(queries[:1])[0]
        method.model_.rows._joined = (0, [])
    assert method.ranks(queries[:1], docids[:1])[0] == before + 1
    assert method.search(queries[:1])[0].docids[0] == stream[1].documents[0].docid


def test_the_title_is_part_of_the_document(quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = made(quick, "none", fit_epochs=0).fit(stream[0])
    document = stream[1].documents[0]
    twins = Corpus([document, document._replace(docid="other", title="a planet far away")])
    one, other = method.row_start(twins, "document", length=1.0)
    assert not torch.allclose(one, other)


def test_it_learns(quick: dict[str, Any], stream: list[Corpus]) -> None:
    """On its own training queries: far better than chance after D0, and the new corpus is found after it was added."""
    free = {"hold_row_length": False, "stand_ins": 0, "add_row_lr": 0.05}  # a random encoder needs room to tell queries apart
    method = made(quick, "none", fit_epochs=12, fit_lr=1e-3, fit_row_lr=1e-2, add_epochs=40, **free).fit(stream[0])
    ranks = method.ranks(*asked(stream[0], "train"))
    assert (ranks <= 5).mean() > 0.5  # chance: 5 of 40
    method.add(stream[1])
    assert (method.ranks(*asked(stream[1], "train")) <= 5).mean() > 0.3
    log = method.logs_[0]
    assert np.mean(log.losses[-3:]) < np.mean(log.losses[:3]) and log.examples == 12 * len(stream[0].pairs("train")) + 12 * len(stream[0])


@pytest.mark.parametrize("name", PROMPTED)
@pytest.mark.parametrize(
    "changes",
    [
        {"selection": "two-pass"},
        {"prefix_space": "pre"},
        {"softmax_scope": "new_only", "stand_ins": 0},
        {"prompt_options": {"prompt_layers": (1, 2), "prompt_length": 4}},
    ],
    ids=["two-pass", "pre", "new-only", "two-layers"],
)
def test_options_of_the_method_section_run(name: str, changes: dict[str, Any], quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = made(quick, name, fit_epochs=1, add_epochs=1, **changes).fit(stream[0]).add(stream[1])
    assert len(method.search(["how does it work"], k=3)[0].docids) == 3


@pytest.mark.parametrize("start", ["random", "queries", "document"])
def test_row_starts(start: str, quick: dict[str, Any], stream: list[Corpus]) -> None:
    sizes = {"row_lengths": "mean", "new_row_length": 1.0, "hold_row_length": start != "random"}
    method = made(quick, "none", fit_row_start=start, add_row_start=start, add_epochs=0, **sizes).fit(stream[0]).add(stream[1])
    if start == "random":
        assert 0.9 < method.model_.rows.blocks[1].abs().max() * method.model_.rows.width**0.5 <= 1
    else:
        lengths = method.model_.rows.blocks[1].norm(dim=1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, method.row_length_), atol=1e-4, rtol=1e-4)


def test_held_rows_keep_their_length_and_free_ones_do_not(quick: dict[str, Any], stream: list[Corpus]) -> None:
    for name in ("none", "s++"):
        held = made(quick, name, add_epochs=5, add_row_lr=0.1, row_lengths="mean", new_row_length=1.0).fit(stream[0]).add(stream[1])
        lengths = held.model_.rows.blocks[1].norm(dim=1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, held.row_length_), atol=1e-4, rtol=1e-4)
    free = made(quick, "none", add_epochs=5, add_row_lr=0.1, hold_row_length=False).fit(stream[0]).add(stream[1])
    assert (free.model_.rows.blocks[1].norm(dim=1) - free.row_length_).abs().max() > 0.05


def test_pseudo_queries_only_uses_no_annotated_query_of_a_new_corpus(quick: dict[str, Any], stream: list[Corpus]) -> None:
    method = made(quick, "none", new_corpus_queries="gen").fit(stream[0])
    stripped = Corpus(stream[1].documents, name="d1")
    queries, _ = asked(stream[1])
    assert made(quick, "none", new_corpus_queries="gen").fit(stream[0]).add(stripped).search(queries) == method.add(stream[1]).search(
        queries
    )


def test_the_paper_preset_runs_with_its_defaults(backbone: str, stream: list[Corpus]) -> None:
    params = PromptDSI().get_params()
    assert (params["prompts"], params["fit_epochs"], params["add_epochs"], params["max_tokens"], params["pooling"]) == (
        "s++",
        20,
        10,
        32,
        "first",
    )
    method = (
        PromptDSI(backbone=backbone, document_tokens=48, fit_epochs=1, add_epochs=1, device="cpu", offline=True)
        .fit(stream[0])
        .add(stream[1])
    )
    assert len(method.search(["x"])[0].docids) == 10


def test_mistakes_are_said(quick: dict[str, Any], stream: list[Corpus], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fit_row_start='moon' is none of random, document, queries"):
        made(quick, "none", fit_row_start="moon").fit(stream[0])
    with pytest.raises(UsageError, match=r"max_tokens=512 but the backbone .* reads 3 to 64"):
        made(quick, "none", max_tokens=512).fit(stream[0])
    with pytest.raises(PromptDSIError, match="have no query to learn from"):
        made(quick, "none", pseudo_queries=0).fit(Corpus(stream[0].documents))
    for changes, says in (
        ({"softmax_scope": "new-only"}, "softmax_scope='new-only' is none of"),
        ({"new_corpus_queries": "train+gen"}, "new_corpus_queries='train\\+gen' is none of"),
        ({"prompts": "s++", "prompt_options": {"key_update": "closed"}}, "key_update='closed' is none of"),
        ({"prompts": "l2p", "prompt_options": {"prompt_init": "smal"}}, "prompt_init='smal' is none of"),
        ({"prompts": "l2p", "prompt_options": {"prompt_length": 5}}, "must be even"),
        ({"device": "gpu"}, "no device 'gpu'"),
    ):
        with pytest.raises(UsageError, match=says):
            PromptDSI(**(quick | changes)).fit(stream[0])
    method = made(quick, "none", fit_epochs=0).fit(stream[0])
    with pytest.raises(UsageError, match="k=0"):
        method.search(["x"], k=0)
    with pytest.raises(UsageError, match="1 documents are not in the index, 'nobody' first"):
        method.ranks(["x"], ["nobody"])
    assert method.search([]) == [] and len(method.ranks([], [])) == 0
    assert method.search("jet stream")[0] == method.search(["jet stream"])[0]  # one text is one query, not many letters
    with pytest.raises(DataError, match="holds no saved method"):
        PromptDSI.load(tmp_path)


def test_topics_are_deterministic_sorted_by_size_and_named(stream: list[Corpus]) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 16))
    kinds = np.repeat(np.arange(4), [40, 30, 20, 10])
    vectors = (centres[kinds] + 0.05 * rng.normal(size=(100, 16))).astype(np.float32)
    texts = [["star planet orbit", "bread oven flour", "violin string bow", "goal match referee"][kind] + " of the" for kind in kinds]
    topics = mine_topics(vectors, texts, seed=1)
    assert topics.counts == [40, 30, 20, 10]
    assert [sorted(words) for words in topics.words] == [
        ["orbit", "planet", "star"],
        ["bread", "flour", "oven"],
        ["bow", "string", "violin"],
        ["goal", "match", "referee"],
    ]
    again = mine_topics(vectors, texts, seed=1)
    assert np.array_equal(again.labels, topics.labels)
    with pytest.raises(UsageError, match="no topic engine 'x'"):
        mine_topics(vectors, texts, engine="x")
    with pytest.raises(PromptDSIError, match="too few to mine topics"):
        mine_topics(vectors[:3], texts[:3])


def test_no_topic_is_made_of_one_document() -> None:
    """Its key would be the mean of that document's queries, which a rehearsal-free method does not keep."""
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(4, 16)
    kinds = np.repeat(np.arange(4), [20, 20, 20, 1])
    vectors = (centres[kinds] + 0.05 * rng.normal(size=(61, 16))).astype(np.float32)
    topics = mine_topics(vectors, ["word"] * 61)
    assert len(topics.counts) == 3 and min(topics.counts) > 1 and (topics.labels == -1).sum() == 1
    few = np.concatenate([np.zeros((11, 16)), 10 * np.eye(3, 16)]).astype(np.float32) + 0.01 * rng.normal(size=(14, 16)).astype(np.float32)
    assert mine_topics(few, ["word"] * 14).counts == [7, 7]  # eleven alike and three alone: halves, not an error
