"""The index answers through the query engine: engines agree, torch is not needed, and what does not belong together is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from all_strategies import NearestCorpus

from promptdsi import Corpus, DataError, Index
from promptdsi.engine.quantized import PANEL, quantize
from promptdsi.errors import UsageError
from promptdsi.index.blobs import Blobs


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
    for first, second in zip(ours.search(small.QUERIES, k=50, explain=True), torchs.search(small.QUERIES, k=50, explain=True), strict=True):
        assert [hit.docid for hit in first] == [hit.docid for hit in second]
        assert [hit.score for hit in first] == pytest.approx([hit.score for hit in second], rel=1e-5, abs=1e-6)
        for left, right in zip(first, second, strict=True):
            assert left.why is not None and right.why is not None
            assert (left.why.prompt, left.why.rank_without, left.why.newer) == (right.why.prompt, right.why.rank_without, right.why.newer)
            assert left.why.similarity == pytest.approx(right.why.similarity, abs=1e-5)


def test_a_strategy_from_outside_the_package_is_served_without_torch_too(tmp_path: Path, corpora: list[Corpus]) -> None:
    backbone = small.backbone(tmp_path / "backbone", corpora)
    small.create(tmp_path / "index", corpora[0], backbone, prompts=NearestCorpus.name).add(corpora[1])
    onnx, torch = (Index.open(tmp_path / "index", engine=engine) for engine in ("auto", "torch"))
    for ours, theirs in zip(onnx.search(small.QUERIES, explain=True), torch.search(small.QUERIES, explain=True), strict=True):
        assert [hit.docid for hit in ours] == [hit.docid for hit in theirs]
        assert [hit.why.prompt for hit in ours if hit.why] == [hit.why.prompt for hit in theirs if hit.why] != []


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
    "changes",
    [{"layers": 2}, {"positions": 20}, {"feed_forward": 7}, {"heads": 7}, {"position_offset": 60}],
    ids=lambda changes: min(changes),
)
def test_an_encoder_that_is_not_the_manifests_is_refused(place: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    index = Index.open(small.copied(place, tmp_path / "other"))
    manifest = index.manifest
    index.store.commit(manifest.next("delete", config=manifest.config | changes))
    with pytest.raises(DataError, match=r"is inconsistent|is no manifest"):
        Index.open(tmp_path / "other")


def test_generations_share_one_encoder(place: Path) -> None:
    newest, older = Index.open(place), Index.open(place, at=2)
    assert newest.opened.encoder.sessions is older.opened.encoder.sessions  # type: ignore[attr-defined]


@pytest.mark.parametrize("stored", ["nothing", "codes row by row", "panels of another size"])
def test_rows_without_our_panels_are_searched_just_so(place: Path, tmp_path: Path, stored: str) -> None:
    """As an index of an earlier state of this software has them."""
    before = small.signature(place)
    index = Index.open(small.copied(place, tmp_path / "old"), device="cpu")
    store, manifest = index.store, index.manifest
    from safetensors.numpy import save

    entries = []
    for entry in manifest.corpora:
        tensors = dict(store.blobs.arrays(entry.rows))
        if stored == "codes row by row":
            tensors["codes"] = np.zeros(tensors["rows"].shape, np.int8)
        if stored == "panels of another size":
            tensors["panel"] = tensors["panel"] + 1
        else:
            del tensors["panel"], tensors["panels"]
        bare = save(tensors, {"since": str(entry.since)})
        entries.append(replace(entry, rows=store.blobs.put(bare, "safetensors")))
    store.commit(manifest.next("delete", corpora=tuple(entries)))
    assert small.signature(tmp_path / "old") == before
    assert not [problem for problem in index.verify().problems if "codes" in problem]


@pytest.mark.parametrize(
    ("name", "odd"),
    [("panels", lambda tensor: tensor + 1), ("shift", lambda tensor: tensor.astype(np.int64)), ("scale", lambda tensor: tensor[1:])],
)
def test_verify_sees_codes_of_other_rows(place: Path, tmp_path: Path, name: str, odd: Any) -> None:
    index = Index.open(small.copied(place, tmp_path / "odd"), device="cpu")
    store, manifest = index.store, index.manifest
    entry = manifest.corpora[0]
    tensors = store.blobs.arrays(entry.rows)
    from safetensors.numpy import save

    written = save(tensors | {name: odd(tensors[name])})
    store.commit(manifest.next("delete", corpora=(replace(entry, rows=store.blobs.put(written, "safetensors")), *manifest.corpora[1:])))
    assert any("the codes are not those of the rows" in problem for problem in index.verify().problems)


def test_a_rows_blob_is_the_same_bytes_for_the_same_rows(place: Path) -> None:
    store = Index.open(place).store
    entry = store.manifest().corpora[0]
    assert store.blobs.put_rows(store.blobs.arrays(entry.rows)["rows"], since=entry.since) == entry.rows


@pytest.mark.parametrize("count", [0, 1, PANEL, PANEL + 3])
def test_rows_are_written_panel_by_panel_as_the_library_writes_them_whole(tmp_path: Path, count: int) -> None:
    from safetensors.numpy import save

    rows = np.random.default_rng(0).standard_normal((count, 6), np.float32)
    expected = save({"rows": rows, "panel": np.array([PANEL], np.int32)} | quantize(rows)._asdict(), {"since": "3"})
    blobs = Blobs(tmp_path / "blobs")
    assert blobs.path(blobs.put_rows(rows, since=3)).read_bytes() == expected
    assert len(blobs.names()) == 1  # no temporary file is left
