"""A contract every prompt strategy keeps, and each strategy's own rules."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from all_strategies import ALL, PROMPTED
from torch import Tensor, nn

from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.index.method_io import make_method
from promptdsi.model.path import unit
from promptdsi.model.prompts import PromptStrategy, Selection, make_strategy
from promptdsi.model.prompts.strategy import cosine, mixed
from promptdsi.model.rows import Rows
from promptdsi.training.objectives import cross_entropy

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("selection", ["single", "two-pass"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_query_does_not_depend_on_its_batch(name: str, selection: str, pooling: str) -> None:
    model = tiny.begun(name, selection=selection, pooling=pooling)
    tokens = tiny.batch(7, 3, 12, 3, 1)
    batched = model(tokens)
    turned = model(type(tokens)(tokens.ids.flip(0), tokens.mask.flip(0) if tokens.mask is not None else None))
    torch.testing.assert_close(turned.vectors.flip(0), batched.vectors, **CLOSE)
    for number in range(5):
        alone = model(tiny.only(tokens, number))
        torch.testing.assert_close(alone.vectors[0], batched.vectors[number], **CLOSE)
        if batched.selection.ids is not None and alone.selection.ids is not None:
            assert int(alone.selection.ids[0]) == int(batched.selection.ids[number])


@pytest.mark.parametrize("name", PROMPTED)
def test_changing_one_samples_prefix_changes_only_that_sample(name: str) -> None:
    model = tiny.begun(name, pooling="mean")
    tokens = tiny.batch(5, 5, 5)
    entering = model.enter(tokens)
    prefix = model.strategy.select(model.selection_vector(tokens, entering)).prefix
    assert prefix is not None
    other = prefix.clone()
    other[1] += 1
    before, after = (model.run_upper(entering, tokens, Selection(given)) for given in (prefix, other))
    changed = (before - after).abs().amax((1, 2)) > 1e-6
    assert changed.tolist() == [False, True, False]


@pytest.mark.parametrize("name", PROMPTED)
def test_the_prefix_of_each_query_is_that_of_its_own_choice(name: str) -> None:
    """Catches the published defect: key/value and batch axes mixed by a reshape."""
    strategy = tiny.begun(name, options={"prompt_layers": (2, 3)}).strategy
    query = torch.randn(6, tiny.WIDTH)
    batched = strategy.select(query).prefix
    assert batched is not None and batched.shape == (6, 2, 2, strategy.prompt_length // 2, tiny.WIDTH)
    for number in range(6):
        alone = strategy.select(query[number : number + 1]).prefix
        assert alone is not None
        torch.testing.assert_close(alone[0], batched[number], **CLOSE)


@pytest.mark.parametrize("name", ALL)
def test_frozen_parts_are_bit_equal_after_steps_with_weight_decay(name: str) -> None:
    model = tiny.begun(name, corpora=2)
    model.encoder.freeze()
    open_names = {n for n, p in model.prompt_pool.named_parameters() if p.requires_grad}
    before = tiny.snapshot(model)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=0.1, weight_decay=0.5)
    model.train()
    for seed in range(3):
        encoded = model(tiny.batch(5, 3, 4, seed=seed))
        loss = cross_entropy(encoded.vectors, model.rows, torch.tensor([5, 6, 5])).mean() + encoded.selection.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = tiny.snapshot(model)
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert moved <= {f"prompt_pool.{n}" for n in open_names} | {"rows.blocks.2"}
    assert "rows.blocks.2" in moved
    fixed = {"rows.blocks.0", "rows.blocks.1"} | ({"prompt_pool.prompts.0", "prompt_pool.keys.0"} if name in ("s++", "coda") else set())
    assert not moved & (fixed | ({"prompt_pool.keys.0"} if name == "topic" else set()))


@pytest.mark.parametrize("name", PROMPTED)
@pytest.mark.parametrize("selection", ["single", "two-pass"])
def test_gradients_of_prompts_and_new_rows_match_finite_differences(name: str, selection: str) -> None:
    model = tiny.begun(name, encoder_changes={"layers": 2}, selection=selection).double()
    model.encoder.freeze()
    model.train()
    tokens = tiny.batch(4, 2)
    targets = torch.tensor([5, 6])

    def loss() -> Tensor:
        encoded = model(tokens)
        scores = encoded.vectors @ torch.cat(list(model.rows.blocks)).T
        return nn.functional.cross_entropy(scores, targets) + encoded.selection.loss

    loss().backward()
    for parameter in [model.strategy.prompts[-1], model.rows.blocks[-1]]:
        assert parameter.grad is not None
        flat = parameter.data.view(-1)
        for place in range(0, flat.numel(), max(1, flat.numel() // 12)):
            original = flat[place].item()
            values = []
            for move in (1e-6, -1e-6):
                flat[place] = original + move
                values.append(loss().item())
            flat[place] = original
            assert parameter.grad.view(-1)[place].item() == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_state_comes_back_and_the_seed_decides_everything(name: str) -> None:
    model, again = tiny.begun(name), tiny.begun(name)
    for key, tensor in model.strategy.state().items():
        assert torch.equal(tensor, again.strategy.state()[key])
    loaded = make_strategy(name, **model.strategy.get_params()).load_state(model.strategy.state())
    loaded.pool.eval()
    query = torch.randn(5, tiny.WIDTH)
    first, second = model.strategy.select(query), loaded.select(query)
    if first.prefix is not None:
        assert second.prefix is not None and torch.equal(first.prefix, second.prefix)
    assert not any(parameter.requires_grad for parameter in loaded.pool.parameters())


@pytest.mark.parametrize("name", ["l2p", "s++"])
def test_keys_learn_from_the_match_term_only_and_prompts_from_the_cross_entropy_only(name: str) -> None:
    strategy = tiny.begun(name).train().strategy
    query = torch.randn(6, tiny.WIDTH)
    match = strategy.select(query)
    assert match.ids is not None
    chosen = torch.cat(list(strategy.keys))[match.ids]
    torch.testing.assert_close(match.loss, (1 - nn.functional.cosine_similarity(query, chosen)).mean(), **CLOSE)  # weight 1, batch mean
    match.loss.backward()
    assert strategy.keys[-1].grad is not None and strategy.prompts[-1].grad is None
    strategy.pool.zero_grad()
    prefix = strategy.select(query).prefix
    assert prefix is not None
    prefix.sum().backward()
    assert strategy.keys[-1].grad is None and strategy.prompts[-1].grad is not None


def test_l2p_picks_the_nearest_key_of_the_whole_pool_at_training_and_test() -> None:
    strategy = tiny.begun("l2p").strategy
    query = torch.randn(20, tiny.WIDTH)
    expected = nn.functional.cosine_similarity(query[:, None], strategy.keys[0][None], dim=-1).argmax(1)
    for mode in (True, False):
        strategy.pool.train(mode)
        chosen = strategy.select(query).ids
        assert chosen is not None and torch.equal(chosen, expected)
    assert len(strategy.prompts) == 1 and all(p.requires_grad for p in strategy.pool.parameters())


def test_l2p_closed_form_keys_are_a_fixed_point_of_assign_and_average() -> None:
    strategy = make_strategy("l2p", key_update="closed_form", prompt_length=4)
    queries = torch.randn(200, tiny.WIDTH)
    strategy.begin_corpus(queries)
    keys = strategy.keys[0]
    nearest = cosine(queries, keys).argmax(1)
    for number in nearest.unique():
        torch.testing.assert_close(keys[number], unit(unit(queries)[nearest == number].sum(0)), **CLOSE)
    assert not strategy.keys[0].requires_grad


def test_splusplus_trains_its_own_pair_and_tests_on_all_seen() -> None:
    strategy = tiny.begun("s++", corpora=3).strategy
    query = strategy.keys[0].detach().repeat(4, 1)  # nearest to the first corpus's key
    strategy.pool.train()
    trained = strategy.select(query).ids
    strategy.pool.eval()
    tested = strategy.select(query).ids
    assert trained is not None and trained.tolist() == [2] * 4
    assert tested is not None and tested.tolist() == [0] * 4
    assert torch.equal(strategy.prompts[1], strategy.prompts[0]) and not torch.equal(strategy.keys[1], strategy.keys[0])
    assert [block.requires_grad for block in strategy.prompts] == [False, False, True]


def test_splusplus_key_converges_to_its_closed_form() -> None:
    queries = torch.randn(300, tiny.WIDTH) + 2
    learned, closed = make_strategy("s++", prompt_length=4), make_strategy("s++", prompt_length=4, key_update="closed_form")
    for strategy in (learned, closed):
        strategy.begin_corpus(queries)
    optimizer = torch.optim.AdamW([learned.keys[0]], lr=0.05, weight_decay=0.0)
    learned.pool.train()
    for _ in range(800):
        optimizer.zero_grad()
        learned.select(queries).loss.backward()
        optimizer.step()
    torch.testing.assert_close(unit(learned.keys[0]), closed.keys[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(closed.keys[0][0], unit(unit(queries).mean(0)), **CLOSE)


def test_coda_components_start_orthonormal_to_all_earlier_ones() -> None:
    strategy = make_strategy("coda", prompt_length=4)
    queries = torch.randn(10, 32)
    for number in range(3):
        strategy.begin_corpus(queries)
        with torch.no_grad():  # as if trained: earlier vectors are no longer orthonormal themselves
            for blocks in (strategy.prompts, strategy.keys, strategy.pool.attention):
                vectors = torch.cat(list(blocks)).flatten(1)
                gram = (vectors @ vectors.T).double()
                new = slice(2 * number, 2 * number + 2)
                torch.testing.assert_close(gram[new, new], torch.eye(2, dtype=torch.float64), atol=1e-5, rtol=0)
                assert number == 0 or gram[new, : 2 * number].abs().max() < 1e-4
                blocks[-1].mul_(3).add_(0.3 * torch.randn_like(blocks[-1]))
    with pytest.raises(ValueError, match="do not fit into 4 dimensions"):
        cramped = make_strategy("coda", components=5, prompt_length=4)
        cramped.begin_corpus(torch.randn(3, 4))


def test_coda_sums_all_components_so_far_with_plain_cosines() -> None:
    strategy = tiny.begun("coda", corpora=2).strategy
    query = torch.randn(3, tiny.WIDTH)
    prefix = strategy.select(query).prefix
    expected = torch.zeros(3, 1, 2, 2, tiny.WIDTH)
    for number in range(4):
        key = torch.cat(list(strategy.keys))[number]
        attention = torch.cat(list(strategy.pool.attention))[number]
        weight = nn.functional.cosine_similarity(query * attention, key[None], dim=-1)
        expected = expected + weight[:, None, None, None, None] * torch.cat(list(strategy.prompts))[number]
    torch.testing.assert_close(prefix, expected, **CLOSE)


def test_topic_keys_are_mean_unit_vectors_of_the_topics_queries_without_outliers() -> None:
    strategy = make_strategy("topic", prompt_length=4)
    queries = torch.randn(30, tiny.WIDTH)
    topics = torch.arange(30) % 4 - 1  # −1 … 2
    strategy.prepare(queries, topics)
    for number in range(3):
        torch.testing.assert_close(strategy.keys[0][number], unit(queries)[topics == number].mean(0), **CLOSE)
    with pytest.raises(PromptDSIError, match="at least two are needed"):
        make_strategy("topic").prepare(queries, torch.zeros(30, dtype=torch.long))
    with pytest.raises(PromptDSIError, match="create the index with prompts topic"):
        make_strategy("topic").begin_corpus(queries)


def test_centring_subtracts_the_mean_of_d0() -> None:
    strategy = make_strategy("s++", center=True, prompt_length=4, key_update="closed_form")
    queries = torch.randn(50, tiny.WIDTH) + 5
    strategy.prepare(queries)
    strategy.begin_corpus(queries[:10])
    centred = unit(queries[:10] - queries.mean(0))
    torch.testing.assert_close(strategy.keys[0][0], unit(centred.mean(0)), **CLOSE)
    similarity = strategy.select(queries[:3]).similarity
    torch.testing.assert_close(similarity, centred[:3] @ unit(centred.mean(0)), **CLOSE)


def test_the_papers_parameter_counts() -> None:
    """5 · 21 · 768 · 4 B = 315.0 KiB; 193 · 21 · 768 · 4 B = 11.874 MiB; 9,874 · 768 and 10,000 · 768 row weights."""
    queries = torch.randn(400, 768)

    def stored(strategy: PromptStrategy) -> int:
        return sum(strategy.sizes().values())

    l2p = make_strategy("l2p")
    l2p.begin_corpus(queries)
    splusplus = make_strategy("s++")
    for _ in range(5):
        splusplus.begin_corpus(queries)
    assert stored(l2p) * 4 / 1024 == stored(splusplus) * 4 / 1024 == 315.0
    coda = make_strategy("coda")
    for _ in range(5):
        coda.begin_corpus(queries)
    assert stored(coda) == 10 * (10 + 1 + 1) * 768
    topic = make_strategy("topic")
    topic.prepare(queries, torch.arange(400) % 193)
    topic.begin_corpus(queries)
    assert round(stored(topic) * 4 / 1024**2, 3) == 11.874
    for new, expected in ((9_874, 7_583_232), (10_000, 7_680_000)):
        rows = Rows(768)
        rows.grow([str(number) for number in range(new)], torch.empty(new, 768))
        assert sum(p.numel() for p in rows.parameters()) == expected


def test_wrong_names_layers_and_options_are_said() -> None:
    with pytest.raises(UsageError, match="no prompt strategy 'x'; there are"):
        make_strategy("x")
    with pytest.raises(UsageError, match="unexpected keyword argument 'colour'"):
        make_strategy("l2p", colour=1)
    with pytest.raises(UsageError, match="the backbone has layers 1 to 3"):
        tiny.model("l2p", options={"prompt_layers": (4,)})
    with pytest.raises(UsageError, match="'last' is none of first, mean"):
        tiny.model("l2p", pooling="last")


@pytest.mark.parametrize("name", ["l2p", "s++", "topic"])
@pytest.mark.parametrize("relative", [0, 8])
def test_queries_that_look_like_d0_go_without_a_prompt(name: str, relative: int) -> None:
    """Each query of a batch takes one of two paths, exactly: that of the prompt it chose, or the unprompted one."""
    model = tiny.begun(name, options={"null_prompt": True}, encoder_changes={"relative_buckets": relative} if relative else None)
    without = tiny.begun(name, encoder_changes={"relative_buckets": relative} if relative else None)
    tokens = tiny.batch(*(5 + number % 6 for number in range(24)), seed=3)
    query = model.selection_vector(tokens, model.enter(tokens))
    middle = torch.nn.functional.normalize(query, dim=1).mean(0)
    similarity = without.strategy.select(query).similarity
    assert model.strategy.pool.null is not None and similarity is not None
    model.strategy.pool.null = middle - 0.2 * torch.randn(tiny.WIDTH, generator=torch.Generator().manual_seed(2))
    encoded, prompted, plain = model(tokens), without(tokens), model.unprompted(tokens)
    unprompted = torch.nn.functional.cosine_similarity(query, model.strategy.pool.null[None]) > similarity
    assert 0 < int(unprompted.sum()) < 24  # both paths are taken
    torch.testing.assert_close(encoded.vectors[unprompted], plain[unprompted])
    torch.testing.assert_close(encoded.vectors[~unprompted], prompted.vectors[~unprompted])
    assert encoded.selection.ids is not None and bool((encoded.selection.ids[unprompted] == -1).all())
    for number in (0, 7, 23):  # alone as in the batch
        torch.testing.assert_close(model(tiny.only(tokens, number)).vectors[0], encoded.vectors[number], rtol=1e-4, atol=1e-5)
    model.train()
    assert model.strategy.hidden(query, model.strategy.select(query)) is None  # in training every query sees its prompt


def test_the_null_key_is_the_mean_direction_of_d0s_queries_and_is_kept() -> None:
    queries = torch.randn(30, 8, generator=torch.Generator().manual_seed(1))
    strategy = make_strategy("s++", null_prompt=True)
    strategy.prepare(queries)
    assert strategy.pool.null is not None
    torch.testing.assert_close(strategy.pool.null, torch.nn.functional.normalize(queries, dim=1).mean(0))
    again = make_strategy("s++", null_prompt=True).load_state(strategy.state())
    assert again.pool.null is not None and torch.equal(again.pool.null, strategy.pool.null)
    plain = make_strategy("s++")
    plain.prepare(queries)
    assert plain.pool.null is None and "null" not in plain.state()


def test_as_published_mixes_the_prompts_of_a_batch_and_an_index_refuses_it() -> None:
    """Entry e of the list [keys of query 0, …, keys of query B−1, values of query 0, …] goes to query e // 2, as keys where e is even."""
    batch, layers = 3, 2
    prefix = torch.arange(batch * layers * 2).reshape(batch, layers, 2, 1, 1)
    for result in (mixed(prefix).numpy(), mixed(prefix.numpy())):
        for layer in range(layers):
            entries = [int(prefix[query, layer, side, 0, 0]) for side in (0, 1) for query in range(batch)]
            assert [int(result[query, layer, side, 0, 0]) for query in range(batch) for side in (0, 1)] == entries
    with pytest.raises(UsageError, match="a result depends on the other queries of its batch"):
        make_method("promptdsi", "paper", {"prompts": "s++", "prompt_options": {"as_published": True}})


OPTIONS: list[dict[str, Any]] = [
    {"top_k": 2},
    {"prompt_layers": (3, 1), "reselect_per_layer": True},
    {"prompt_layers": (1, 3), "reselect_per_layer": True, "top_k": 2},
]


@torch.no_grad()
def reference(model: tiny.DSI, tokens: tiny.Tokens) -> Tensor:
    """The vector of one query (1, D), layer by layer: keys compared one by one, rows of the chosen prompts put together by hand."""
    strategy, states = model.strategy, model.encoder.embed(tokens)
    keys, prompts = torch.cat(list(strategy.keys)), torch.cat(list(strategy.prompts))
    chosen: list[int] = []
    for layer in range(1, model.encoder.config.layers + 1):
        if layer not in strategy.prompt_layers:
            states = model.encoder.run(states, tokens, first=layer, last=layer)
            continue
        if not chosen or strategy.reselect_per_layer:
            query = states[0].sum(0) / states.shape[1]
            cosines = [float(query @ key / query.norm() / key.norm()) for key in keys]
            chosen = sorted(range(len(keys)), key=lambda number: -cosines[number])[: getattr(strategy, "top_k", 1)]
        position = strategy.prompt_layers.index(layer)
        sides = [torch.cat([prompts[number, position, side] for number in chosen]) for side in (0, 1)]
        states = model.encoder.run(states, tokens, first=layer, last=layer, prefixes={layer: torch.stack(sides)[None]})
    return states.mean(1) if model.pooling == "mean" else states[:, 0]


@pytest.mark.parametrize("options", OPTIONS, ids=["two prompts", "each layer", "both"])
@pytest.mark.parametrize("name", ["l2p", "topic"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_several_prompts_and_a_choice_at_each_layer_are_those_of_the_reference(name: str, options: dict[str, Any], pooling: str) -> None:
    model = tiny.begun(name, options=options, pooling=pooling)
    tokens = tiny.batch(7, 3, 12, 3, 1, 9, 5, 6)
    batched = model(tokens).vectors
    for number in range(8):
        alone = tiny.only(tokens, number)
        torch.testing.assert_close(model(alone).vectors[0], batched[number], **CLOSE)  # whatever its batch
        torch.testing.assert_close(batched[number], reference(model, alone)[0], **CLOSE)
    if model.strategy.reselect_per_layer:
        model.strategy.reselect_per_layer = False
        assert not torch.allclose(model(tokens).vectors, batched, **CLOSE)  # some query chose otherwise at the later layer


def test_the_match_term_pulls_every_chosen_key_and_no_gradient_reaches_a_query() -> None:
    model = tiny.begun("l2p", options={"top_k": 2, "prompt_layers": (1, 2), "reselect_per_layer": True})
    model.train()
    query = torch.randn(4, tiny.WIDTH, requires_grad=True)
    chosen = cosine(query, model.strategy.keys[0]).topk(2).values  # (4, 2)
    torch.testing.assert_close(model.strategy.select(query).loss, (1 - chosen).sum(1).mean(), **CLOSE)
    model(tiny.batch(4, 6)).selection.loss.backward()
    assert model.strategy.keys[0].grad is not None and model.strategy.prompts[0].grad is None


def test_more_prompts_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(UsageError, match="top_k=6 prompts of a pool of 5"):
        make_strategy("l2p", top_k=6)
    with pytest.raises(UsageError, match="top_k=0"):
        make_strategy("topic", top_k=0)
    with pytest.raises(UsageError, match="top_k=4, but D0 gave 3 topics"):
        tiny.begun("topic", options={"top_k": 4})
