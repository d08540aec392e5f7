"""A search engine that people use instead, in a process of its own; tools.bench.rivals starts it with the interpreter that has it.

Imports nothing of promptdsi: the libraries here need other versions of what it needs.

    python rival.py SYSTEM FOLDER     # FOLDER has documents.jsonl and the backbone's folder in backbone.txt
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

K = 10
Search = Callable[[str], list[str]]


def sentence_transformers(folder: Path, docids: list[str], texts: list[str], **how: Any) -> tuple[Any, Search]:
    import faiss
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer((folder / "backbone.txt").read_text().strip(), **how)
    vectors = encode(model, texts)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    return model, lambda query: [docids[number] for number in flat.search(encode(model, [query]), K)[1][0]]


def encode(model: Any, texts: list[str]) -> Any:
    return model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def bm25s(folder: Path, docids: list[str], texts: list[str]) -> Search:
    import bm25s as library

    index = library.BM25(method="lucene", k1=1.5, b=0.75)
    index.index(library.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)

    def search(query: str) -> list[str]:
        tokens = library.tokenize([query], stopwords="en", show_progress=False)
        return [docids[number] for number in index.retrieve(tokens, k=K, show_progress=False)[0][0]]

    return search


def lancedb(folder: Path, docids: list[str], texts: list[str]) -> Search:
    """Its hybrid search: exact vectors and full text, fused by reciprocal rank."""
    import lancedb as library
    from lancedb.rerankers import RRFReranker
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer((folder / "backbone.txt").read_text().strip(), backend="onnx")
    vectors = encode(model, texts)
    rows = [{"docid": docid, "text": text, "vector": vector} for docid, text, vector in zip(docids, texts, vectors, strict=True)]
    table = library.connect(str(folder / "lancedb")).create_table("documents", rows, mode="overwrite")
    table.create_fts_index("text", replace=True)
    reranker = RRFReranker()

    def search(query: str) -> list[str]:
        plain = "".join(letter if letter.isalnum() else " " for letter in query)  # its query language has operators
        hits = table.search(query_type="hybrid").vector(encode(model, [query])[0]).text(plain).rerank(reranker).limit(K)
        return [row["docid"] for row in hits.to_list()]

    return search


def make(name: str, folder: Path) -> Search:
    documents = [json.loads(line) for line in (folder / "documents.jsonl").read_text("utf-8").splitlines()]
    docids, texts = [document["docid"] for document in documents], [document["text"] for document in documents]
    if name == "bm25s":
        return bm25s(folder, docids, texts)
    if name == "lancedb":
        return lancedb(folder, docids, texts)
    ways: dict[str, dict[str, Any]] = {
        "torch": {},
        "onnx": {"backend": "onnx"},
        "onnx int8": {"backend": "onnx", "model_kwargs": {"file_name": "onnx/model_quint8_avx2.onnx"}},
    }
    if name == "onnx int8":
        quantize(folder)
    return sentence_transformers(folder, docids, texts, **ways[name])[1]


def quantize(folder: Path) -> None:
    """The library's own int8 weights, for AVX2, written beside the backbone's copy."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    place = (folder / "backbone.txt").read_text().strip()
    if not (Path(place) / "onnx" / "model_quint8_avx2.onnx").exists():
        export_dynamic_quantized_onnx_model(SentenceTransformer(place, backend="onnx"), "avx2", place)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    started = time.perf_counter()
    search = make(name, folder)
    print(json.dumps({"built": time.perf_counter() - started}), flush=True)
    search("a first query, so that nobody waits for what is set up once")
    for line in sys.stdin:
        answers = []
        for query in json.loads(line):
            began = time.perf_counter()
            docids = search(query)
            answers.append([time.perf_counter() - began, docids])
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
