"""Exports give what the index gives: FAISS and the Hugging Face libraries find the same documents with the same scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch

from promptdsi import Corpus, DataError, Index, PromptDSIError
from promptdsi.errors import UsageError

QUERIES = ["how does a telescope work", "tea", "what is bread made of", "water"]


@pytest.fixture
def index(place: Path, corpora: list[Corpus]) -> Index:
    """With a deleted, a replaced and a purged document."""
    index = Index.open(place, device="cpu")
    index.delete(corpora[0].documents[2].docid)
    index.add(Corpus([corpora[0].documents[3]._replace(text="Replaced words.")], name="new"), update=True)
    index.purge(corpora[1].documents[0].docid)
    return index


def test_faiss_finds_the_same(index: Index, tmp_path: Path) -> None:
    import faiss

    assert index.export("faiss", tmp_path / "out") == ["docids.json", "rows.faiss"]
    flat = faiss.read_index(str(tmp_path / "out/rows.faiss"))
    docids = json.loads((tmp_path / "out/docids.json").read_text())
    assert flat.ntotal == len(index) == len(docids)
    scores, rows = flat.search(index.opened.method.encode(QUERIES).numpy(), len(index))
    for hits, own_scores, own_rows in zip(index.search(QUERIES, k=100), scores, rows, strict=True):
        assert [docids[str(row)] for row in own_rows] == [hit.docid for hit in hits]
        np.testing.assert_allclose(own_scores, [hit.score for hit in hits], rtol=1e-4, atol=1e-6)


def test_hugging_face_libraries_give_the_same_scores(index: Index, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    index.export("hf", tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    rows = load_file(tmp_path / "out/rows.safetensors")["rows"]
    docids = json.loads((tmp_path / "out/docids.json").read_text())
    for query in QUERIES:
        tokens = {"input_ids": torch.tensor([tokenizer(query, truncation=True)["input_ids"]])}
        with torch.no_grad():
            vector = torch.nn.functional.normalize(model(**tokens).last_hidden_state.mean(1))
        scores = dict(zip(docids, (vector @ rows.T)[0].tolist(), strict=True))
        for hit in index.search(query, k=100):
            assert scores[hit.docid] == pytest.approx(hit.score, abs=1e-5)
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith("---\n") and "| new | 1 | 4 |" in card and "No prompts" in card
    described = json.loads((tmp_path / "out/promptdsi.json").read_text())
    assert described["generation"] == 5 and described["params"]["encoding"]["scale"] == 20.0


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_every_family_goes_to_the_library_and_back(family: str, tmp_path: Path) -> None:
    import tiny
    from transformers import AutoModel

    from promptdsi.methods.vector_search import to_bytes
    from promptdsi.model.families import library_config, library_weights, read_config, read_weights

    changes: dict[str, Any] = {"family": family}
    if family != "bert":
        changes |= {"position_offset": 2, "pad_id": 1}
    if family == "mpnet":
        changes |= {"relative_buckets": 32}
    encoder = tiny.encoder(**changes)
    (tmp_path / "config.json").write_text(json.dumps(library_config(encoder.config)))
    weights = library_weights(encoder.state_dict(), encoder.config)
    (tmp_path / "model.safetensors").write_bytes(to_bytes(weights, metadata={"format": "pt"}))
    assert read_config(tmp_path) == encoder.config
    again = read_weights(tmp_path, encoder.config)
    assert again.keys() == encoder.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in encoder.state_dict().items())
    ids = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    model = AutoModel.from_pretrained(tmp_path).eval()
    from promptdsi.model.encoder import Tokens

    with torch.no_grad():
        tokens = Tokens(ids)
        ours = encoder.run(encoder.embed(tokens), tokens)
        torch.testing.assert_close(ours, model(input_ids=ids).last_hidden_state, rtol=1e-4, atol=1e-5)


def test_beir_gives_the_documents_back(index: Index, tmp_path: Path) -> None:
    index.export("beir", tmp_path / "out")
    corpus = Corpus.read(tmp_path / "out")
    assert {document.docid for document in corpus.documents} == {hit.docid for hit in index.search("tea", k=100)}
    assert all(index.get(document.docid) == document for document in corpus.documents)
    pairs = corpus.pairs("train")
    assert pairs and {pair.docid for pair in pairs} <= {document.docid for document in corpus.documents}


def test_what_cannot_be_exported_is_said(index: Index, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no export 'csv'; there are faiss, beir, hf"):
        index.export("csv", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("x")
    with pytest.raises(DataError, match="exists and is not empty"):
        index.export("beir", tmp_path / "full")
    bare = small.create(tmp_path / "bare", corpora[0], backbone, store="title")
    with pytest.raises(PromptDSIError, match="stores no text"):
        bare.export("beir", tmp_path / "none")
    prompted = small.create(tmp_path / "prompted", corpora[0], backbone, prompts="s++", prompt_options={"prompt_length": 4})
    prompted.add(corpora[1])
    assert "prompts.safetensors" in prompted.export("hf", tmp_path / "hf")
    assert "scores are those *without* prompts" in (tmp_path / "hf/README.md").read_text()
