"""Exports give what the index gives: an outside program that reads them computes the same scores."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch

from promptdsi import Corpus, DataError, Index, PromptDSIError
from promptdsi.errors import UsageError

QUERIES = ["how does a telescope work", "tea", "what is bread made of", "water water everywhere", "a low-cost e-reader, zyzzyva", "the"]


@pytest.fixture
def index(place: Path, corpora: list[Corpus]) -> Index:
    """With a deleted, a replaced and a purged document."""
    index = Index.open(place, device="cpu")
    index.delete(corpora[0].documents[2].docid)
    index.add(Corpus([corpora[0].documents[3]._replace(text="Replaced words.")], name="new"), update=True)
    index.purge(corpora[1].documents[0].docid)
    return index


class ExportedWords:
    """What an outside program makes of the three files: numpy, scipy and the standard library, nothing of ours."""

    def __init__(self, folder: Path) -> None:
        from scipy.sparse import load_npz

        self.matrix, self.idf = load_npz(folder / "words.npz"), np.load(folder / "idf.npy")
        self.about = json.loads((folder / "words.json").read_text("utf-8"))
        self.column = {term: number for number, term in enumerate(self.about["terms"])}
        assert self.matrix.shape[1] == len(self.column) == len(self.idf) and (np.diff(self.matrix.indptr) >= 0).all()

    def scores(self, query: str) -> Any:
        """weight · coverage of each row: (N,). Words as the file says; a joined one counts whole and in parts."""
        split, total, sums = self.about["split"], 0.0, np.zeros(self.matrix.shape[0])
        for token in re.findall(split["pattern"], query.lower()):
            for word in [token] if token.isalnum() else [token, *re.findall(r"[^\W_]+", token)]:
                if word in split["stop_words"]:
                    continue
                if key := self.about["hash"]:
                    word = hashlib.blake2b(word.encode(), digest_size=8, key=key["key"].encode()).hexdigest()
                number = self.column.get(word, -1)
                total += self.idf[number] if number >= 0 else self.about["idf_of_other_words"]
                sums += self.idf[number] * self.matrix[:, [number]].toarray()[:, 0] if number >= 0 else 0.0
        return self.about["weight"] * sums / total if total else sums


def check_scores(index: Index, query: str, scores: dict[int, float], docids: dict[int, str]) -> None:
    """Whether the best of each document's rows has the score that the index gives the document, and the best document is the same."""
    best: dict[str, float] = {}
    for row, score in scores.items():
        best[docids[row]] = max(best.get(docids[row], -np.inf), score)
    hits = index.search(query, k=1000)
    assert len(hits) == len(best) and len(scores) > len(best)  # each document once, some of several rows
    for hit in hits:
        assert best[hit.docid] == pytest.approx(hit.score, abs=1e-4)


def test_faiss_and_the_words_give_the_same_scores(index: Index, tmp_path: Path) -> None:
    import faiss

    assert index.export("faiss", tmp_path / "out") == ["docids.json", "idf.npy", "rows.faiss", "words.json", "words.npz"]
    flat = faiss.read_index(str(tmp_path / "out/rows.faiss"))
    docids = {int(row): docid for row, docid in json.loads((tmp_path / "out/docids.json").read_text()).items()}
    assert flat.ntotal == len(docids) > len(index) == len(set(docids.values()))
    words = ExportedWords(tmp_path / "out")
    assert set(np.flatnonzero(np.diff(words.matrix.indptr)).tolist()) == set(docids)  # deleted and purged rows have no words
    products, rows = flat.search(index.opened.method.encode(QUERIES).numpy(), flat.ntotal)
    for number, query in enumerate(QUERIES):
        added = words.scores(query)
        scores = {row: product + added[row] for row, product in zip(rows[number].tolist(), products[number].tolist(), strict=True)}
        check_scores(index, query, scores, docids)
    weight = words.about["weight"]
    assert weight > 0.01 and any(words.scores(query).max() > 0.3 * weight for query in QUERIES)  # far more than 1e-4: words count here


def test_hugging_face_libraries_and_the_words_give_the_same_scores(index: Index, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    index.export("hf", tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    rows = load_file(tmp_path / "out/rows.safetensors")["rows"]
    docids = dict(enumerate(json.loads((tmp_path / "out/docids.json").read_text())))
    words = ExportedWords(tmp_path / "out")
    for query in QUERIES:
        tokens = {"input_ids": torch.tensor([tokenizer(query, truncation=True)["input_ids"]])}
        with torch.no_grad():
            vector = torch.nn.functional.normalize(model(**tokens).last_hidden_state.mean(1))
        check_scores(index, query, dict(enumerate(((vector @ rows.T)[0].numpy() + words.scores(query)).tolist())), docids)
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith("---\n") and "| new | 1 | 4 |" in card and "No prompts" in card
    assert "Words add to the score of a row" in card and "its score is\nthat of its best row" in card
    described = json.loads((tmp_path / "out/promptdsi.json").read_text())
    assert described["generation"] == 5 and described["params"]["encoding"]["scale"] == 40.0


def test_hashed_words_are_exported_as_hashes(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, store="none")
    index.export("hf", tmp_path / "out")
    words, opened = ExportedWords(tmp_path / "out"), index.opened
    assert words.about["hash"] and not words.column.keys() & {"water", "light", "years"} and all(len(term) == 16 for term in words.column)
    for query in QUERIES:
        expected = opened.words.query(query).scores(opened.live_rows())  # type: ignore[union-attr]
        np.testing.assert_allclose(words.scores(query), expected, atol=1e-5)


def test_rows_alone_are_exported_without_words(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    params = {"encoding.words": False, "encoding.passage_tokens": 0}
    index = small.create(tmp_path / "index", corpora[0], backbone, **params)
    assert index.export("faiss", tmp_path / "out") == ["docids.json", "rows.faiss"]
    index.export("hf", tmp_path / "hf")
    assert "Words do not count" in (tmp_path / "hf/README.md").read_text() and not (tmp_path / "hf/words.npz").exists()


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_every_family_goes_to_the_library_and_back(family: str, tmp_path: Path) -> None:
    import tiny
    from transformers import AutoModel

    from promptdsi.methods.saving import to_bytes
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
    assert len(corpus.documents) == len(index) < len(index.opened.live_rows())  # each document once, however many passages it has
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
