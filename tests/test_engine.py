"""The query engine gives what the model gives, without torch: encoder, prompts, and exact search in mapped rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from promptdsi import Corpus, DataError, Index
from promptdsi.engine.codes import Scan, coded
from promptdsi.engine.encoder import Layers, QueryEncoder
from promptdsi.engine.mapped import mapped_tensors
from promptdsi.engine.selection import KNOWN, Pool
from promptdsi.engine.table import FEW, SMALL, Block, Table, joined
from promptdsi.errors import UsageError
from promptdsi.index.rows import put_rows
from promptdsi.model.config import PROMPT_LAYERS
from promptdsi.model.dsi import DSI
from promptdsi.model.prompts import strategies
from promptdsi.model.tokens import Ids, Tokenised

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"family": "roberta", "position_offset": 2, "pad_id": 1, "activation": "relu"},
    "mpnet": {"family": "mpnet", "position_offset": 2, "pad_id": 1, "relative_buckets": 8, "activation": "gelu_new"},
}
QUERIES = ["5 6 7 8 9 10 11", "12 13", "14", "15 16 17 18", "19 20 21 22 23 24 25 26 27 28"]


class Written:
    """A tokeniser for queries that are written as numbers of tokens."""

    def encode(self, texts: list[str], *, max_tokens: int) -> Tokenised:
        ids: list[Ids] = [np.array([int(word) for word in text.split()], np.int32) for text in texts]
        return Tokenised([one[:max_tokens] for one in ids], sum(len(one) > max_tokens for one in ids))


def engine_of(model: DSI, **keywords: Any) -> QueryEncoder:
    """The engine for a model, from what an index would hold of it."""
    weights = {name: tensor.numpy() for name, tensor in model.encoder.state_dict().items()}
    prompts = {name: tensor.numpy() for name, tensor in model.strategy.state().items() if tensor is not None}
    pool = Pool(prompts, model.strategy.prompt_layers, center=model.strategy.center)
    first = model.pooling == "first"
    layers = Layers(model.encoder.config, weights, pool.layers if len(pool) else (), firsts_only=first, threads=1, **keywords)
    return QueryEncoder(
        layers,
        Written(),  # type: ignore[arg-type]
        pool,
        pooling=model.pooling,
        normalise=model.normalise,
        max_tokens=16,
        two_pass=model.selection == "two-pass",
        project=model.prefix_space == "pre",
    )


@torch.no_grad()
def expected(model: DSI, queries: list[str], *, prompted: bool = True) -> Any:
    """Each query alone through the model."""
    found = []
    for query in queries:
        tokens = tiny.Tokens(torch.tensor([[int(word) for word in query.split()]]))
        found.append((model(tokens).vectors if prompted else model.unprompted(tokens))[0])
    return torch.stack(found).numpy()


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", KNOWN)
def test_vectors_are_the_models(strategy: str, family: str, pooling: str) -> None:
    model = tiny.begun(strategy, encoder_changes=FAMILIES[family], pooling=pooling, normalise=pooling == "mean")
    engine = engine_of(model)
    for prompted in (True, False):
        np.testing.assert_allclose(engine.encode(QUERIES, prompted=prompted), expected(model, QUERIES, prompted=prompted), atol=2e-6)


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ({"prompt_layers": (1,)}, {}),
        ({"prompt_layers": (3,)}, {"pooling": "first"}),
        ({"prompt_layers": (2, 3)}, {}),
        ({"prompt_layers": (1, 3)}, {"prefix_space": "pre"}),
        ({"center": True}, {"selection": "two-pass"}),
        ({"null_prompt": True, "center": True}, {}),
    ],
    ids=["first layer", "last layer", "two layers", "before the projections", "two passes", "null prompt"],
)
@pytest.mark.parametrize("strategy", ["s++", "coda"])
def test_vectors_are_the_models_with_every_option(strategy: str, options: dict[str, Any], keywords: dict[str, Any]) -> None:
    model = tiny.begun(strategy, options=options, **keywords)
    np.testing.assert_allclose(engine_of(model).encode(QUERIES), expected(model, QUERIES), atol=2e-6)


def test_the_choice_is_the_models() -> None:
    model = tiny.begun("s++", options={"null_prompt": True})
    engine, tokens = engine_of(model), tiny.Tokens(torch.tensor([[5, 6, 7]]))
    chosen = engine.choose("5 6 7")
    with torch.no_grad():
        selection = model(tokens).selection
    assert chosen is not None and selection.ids is not None and chosen.hidden is not None
    assert selection.similarity is not None
    assert (-1 if chosen.hidden[0] else chosen.ids[0]) == int(selection.ids[0])
    assert chosen.similarity[0] == pytest.approx(float(selection.similarity[0]), abs=1e-6)


def test_every_strategy_of_ours_is_known_and_stands_where_the_engine_expects_it() -> None:
    assert set(KNOWN) == {name for name, kind in strategies().items() if kind.__module__.startswith("promptdsi.")}
    assert all(kind().prompt_layers == PROMPT_LAYERS for kind in strategies().values())


def test_many_queries_are_encoded_in_batches_and_come_back_in_order() -> None:
    model = tiny.begun("l2p")
    engine = engine_of(model)
    queries = [" ".join(str(5 + (number * place) % 50) for place in range(1, 2 + number % 14)) for number in range(400)]
    alone = np.concatenate([engine.encode([query]) for query in queries[:50]])
    np.testing.assert_allclose(engine.encode(queries)[:50], alone, atol=2e-6)
    assert engine.encode([]).shape == (0, tiny.WIDTH)


def test_int8_is_near_and_not_the_same() -> None:
    model = tiny.model("none")
    exact, near = engine_of(model).encode(QUERIES), engine_of(model, int8=True).encode(QUERIES)
    cosines = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosines.min() > 0.97
    assert np.abs(exact - near).max() > 1e-6


# Rows ---------------------------------------------------------------------------------------------------------------------

finite = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@given(st.lists(st.lists(finite, min_size=6, max_size=6), min_size=1, max_size=12), st.lists(finite, min_size=6, max_size=6))
def test_no_score_is_further_off_than_its_bound(rows: list[list[float]], query: list[float]) -> None:
    matrix, vector = np.array(rows, np.float32), np.array(query, np.float32)
    near, slack = Scan(vector).near(coded(matrix))
    exact = matrix.astype(np.float64) @ vector.astype(np.float64)
    assert (np.abs(near - exact) <= slack + 1e-30).all()


def table_of(blocks: list[np.ndarray[Any, Any]], dead: set[int], docids: list[str] | None = None) -> Table:
    count = sum(len(block) for block in blocks)
    return Table([Block(block, coded(block)) for block in blocks], docids or [f"d{(7 * row) % count:05d}" for row in range(count)], dead)


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 60),
    st.integers(1, 2 * FEW),
    st.floats(0, 0.9),
    st.booleans(),
)
def test_search_finds_exactly_what_sorting_all_scores_finds(
    seed: int, sizes: list[int], k: int, queries: int, deleted: float, coarse: bool
) -> None:
    random = np.random.default_rng(seed)
    blocks = [random.standard_normal((size, 8), np.float32) for size in sizes]
    if coarse:  # many equal scores: ties go by docid
        blocks = [np.round(block) for block in blocks]
    asked = random.standard_normal((queries, 8), np.float32).round(0 if coarse else 8)
    count = sum(sizes)
    dead = set(np.flatnonzero(random.random(count) < deleted).tolist())
    table = table_of(blocks, dead)
    scores = (asked.astype(np.float64) @ np.concatenate(blocks).astype(np.float64).T).astype(np.float32)
    found = table.top(asked, k)
    for place in range(queries):
        order = sorted((row for row in range(count) if row not in dead), key=lambda row: (-scores[place, row], table.docids[row]))
        assert found.rows[place].tolist() == order[:k]
        np.testing.assert_array_equal(found.scores[place], scores[place, order[:k]])
        targets = order[:5]
        assert table.ranks(asked[place], targets).tolist() == list(range(1, len(targets) + 1))


def test_a_search_does_not_depend_on_who_asks_beside() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((70_000, 16), np.float32)  # more than one piece of either kind
    table, asked = table_of([rows[:66_000], rows[66_000:]], {5, 69_999}), random.standard_normal((3 * FEW, 16), np.float32)
    together = table.top(asked, 20)
    for place, query in enumerate(asked):
        alone = table.top(query[None], 20)
        np.testing.assert_array_equal(alone.rows[0], together.rows[place])
        np.testing.assert_array_equal(alone.scores[0], together.scores[place])


def test_neighbours_are_the_nearest_by_cosine() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((50, 8), np.float32) * random.uniform(0.1, 5, (50, 1)).astype(np.float32)
    table = table_of([rows[:20], rows[20:]], {3, 30})
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for row, found in zip([0, 25], table.neighbours([0, 25], 6), strict=True):
        order = sorted((other for other in range(50) if other not in (row, 3, 30)), key=lambda other: -float(units[other] @ units[row]))
        assert [other for other, _ in found] == order[:6]
        assert found[0][1] == pytest.approx(float(units[order[0]] @ units[row]), abs=1e-6)


def test_many_small_corpora_are_searched_as_one_and_hold_no_file_open(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    blocks = []
    for number in range(60):
        save_file({"rows": random.standard_normal((7, 8), np.float32)}, tmp_path / f"{number}.safetensors")
        rows = mapped_tensors(tmp_path / f"{number}.safetensors")["rows"]
        blocks.append(Block(rows, coded(rows)))
    large = random.standard_normal((SMALL, 8), np.float32)
    every = [*blocks[:30], Block(large, coded(large)), *blocks[30:]]
    one = joined(every)
    assert [len(block.rows) for block in one] == [210, SMALL, 210]
    assert one[1].rows is large  # stays where it is: mapped
    np.testing.assert_array_equal(np.concatenate([block.rows for block in every]), np.concatenate([block.rows for block in one]))
    del blocks, every, rows
    held = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and str(tmp_path) in os.readlink(link)]
    assert not held


def test_equal_rows_tie_wherever_they_stand() -> None:
    random = np.random.default_rng(0)
    row = random.standard_normal(384, np.float32)
    rows = np.concatenate([np.tile(row, (37, 1)), random.standard_normal((90, 384), np.float32) * 0.1])
    table = table_of([rows], set(), [f"d{number:03d}" for number in reversed(range(127))])
    for query in row + random.standard_normal((50, 384), np.float32):
        assert table.top(query[None], 37).rows[0].tolist() == list(range(36, -1, -1))


# Files --------------------------------------------------------------------------------------------------------------------


def test_mapped_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    random = np.random.default_rng(0)
    written = {"a": random.standard_normal((3, 5), np.float32), "b": np.arange(7, dtype=np.int8), "c": np.zeros((0, 4), np.float32)}
    save_file(written, path, {"since": "1"})
    found = mapped_tensors(path)
    assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in written.items()}
    with pytest.raises(ValueError, match="read-only"):
        found["a"][0, 0] = 1


@given(st.binary(max_size=200), st.integers(0, 199), st.booleans())
def test_a_damaged_file_is_one_error_and_never_a_wrong_tensor(tmp_path_factory: Any, noise: bytes, place: int, cut: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    written = {"a": np.arange(12, dtype=np.float32).reshape(3, 4)}
    save_file(written, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:place] if cut else whole[:place] + noise + whole[place + len(noise) :])
    try:
        found = mapped_tensors(path)
    except DataError:
        return
    assert all(one.nbytes <= len(whole) + len(noise) for one in found.values())


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lies.safetensors"
    cases = (([4], [0, 99]), ([-4], [0, 16]), ([10**30], [0, 16]), ([True, 4], [0, 16]), ([4.0], [0, 16]), ([4], [16, 0]))
    for said in ({"dtype": "F32", "shape": shape, "data_offsets": offsets} for shape, offsets in cases):
        header = json.dumps({"a": said}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
        with pytest.raises(DataError, match="damaged"):
            mapped_tensors(path)


# The index ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora() -> list[Corpus]:
    return small.stream()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, corpora: list[Corpus]) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    index = small.create(folder / "index", corpora[0], small.backbone(folder / "backbone", corpora), prompts="s++")
    index.add(corpora[1])
    index.delete(corpora[0].documents[3].docid)
    return folder / "index"


def test_engines_agree(place: Path) -> None:
    ours, torchs = (Index.open(place, engine=engine) for engine in ("onnx", "torch"))
    for one, other in zip(ours.search(small.QUERIES, k=50, explain=True), torchs.search(small.QUERIES, k=50, explain=True), strict=True):
        assert [hit.docid for hit in one] == [hit.docid for hit in other]
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], rel=1e-5, abs=1e-6)
        for left, right in zip(one, other, strict=True):
            assert left.why is not None and right.why is not None
            assert (left.why.prompt, left.why.rank_without, left.why.newer) == (right.why.prompt, right.why.rank_without, right.why.newer)
            assert left.why.similarity == pytest.approx(right.why.similarity, abs=1e-5)


def test_searching_needs_no_torch(place: Path) -> None:
    script = f"""
import sys
from promptdsi import Index
from promptdsi.serving.app import create_app
index = Index.open({str(place)!r})
assert index.search("what is water made of", k=3, explain=True)
index.delete(index.search("water")[0].docid); index.rollback(); index.verify(); index.log(); index.get(index.search("water")[0].docid)
create_app({str(place)!r})
print(sorted(name for name in ("torch", "transformers", "sklearn", "scipy", "pandas") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_engines_that_do_not_fit_are_refused(place: Path) -> None:
    with pytest.raises(UsageError, match="no engine 'gpu'; there are auto, onnx, int8, torch"):
        Index.open(place, engine="gpu")
    with pytest.raises(UsageError, match="use --engine torch"):
        Index.open(place, engine="onnx", device="cuda")


@pytest.mark.parametrize(
    "changes", [{"layers": 2}, {"positions": 20}, {"feed_forward": 7}, {"heads": 7}, {"position_offset": 60}], ids=lambda one: min(one)
)
def test_an_encoder_that_is_not_the_manifests_is_refused(place: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    index = Index.open(small.copied(place, tmp_path / "other"))
    manifest = index.snapshot.manifest
    index.store.commit(manifest.next("delete", config=manifest.config | changes))
    with pytest.raises(DataError, match="does not hold together"):
        Index.open(tmp_path / "other")


def test_generations_share_one_encoder(place: Path) -> None:
    newest, older = Index.open(place), Index.open(place, at=2)
    assert newest.snapshot.encoder.layers is older.snapshot.encoder.layers  # type: ignore[attr-defined]


def test_rows_without_codes_are_searched_just_so(place: Path, tmp_path: Path) -> None:
    """As an index of an earlier release has them."""
    before = small.signature(place)
    index = Index.open(small.copied(place, tmp_path / "old"), device="cpu")
    store, manifest = index.store, index.snapshot.manifest
    from safetensors.numpy import save

    entries = []
    for entry in manifest.corpora:
        bare = save({"rows": store.blobs.arrays(entry.rows)["rows"]}, {"since": str(entry.since)})
        entries.append(replace(entry, rows=store.blobs.put(bare, "safetensors")))
    store.commit(manifest.next("delete", corpora=tuple(entries)))
    assert small.signature(tmp_path / "old") == before
    assert not [one for one in index.verify().problems if "codes" in one]


def test_verify_sees_codes_of_other_rows(place: Path, tmp_path: Path) -> None:
    index = Index.open(small.copied(place, tmp_path / "odd"), device="cpu")
    store, manifest = index.store, index.snapshot.manifest
    entry = manifest.corpora[0]
    held = store.blobs.arrays(entry.rows)
    from safetensors.numpy import save

    odd = save({name: one + (name == "codes") if name == "codes" else one for name, one in held.items()})
    store.commit(manifest.next("delete", corpora=(replace(entry, rows=store.blobs.put(odd, "safetensors")), *manifest.corpora[1:])))
    assert any("the codes are not those of the rows" in one for one in index.verify().problems)


def test_a_rows_blob_is_the_same_bytes_for_the_same_rows(place: Path) -> None:
    store = Index.open(place).store
    entry = store.manifest().corpora[0]
    assert put_rows(store, store.blobs.arrays(entry.rows)["rows"], since=entry.since) == entry.rows
