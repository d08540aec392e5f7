"""Exports: rows and words for FAISS, documents as a BEIR folder, encoder, rows and words as a Hugging Face style folder with a card.

Where words count beside rows, three files hold all that an outside program needs to add them:

    words.npz     sparse matrix (rows × terms), as scipy.sparse.load_npz reads it: tf / (tf + k1 (1 − b + b · length / average))
    idf.npy       (terms,)
    words.json    the terms, the idf of any other word, the weight, and how a text is split into words

    score(q, d) = max over rows p of d of [ q · v_p + weight · Σ_t tf_q(t) · idf(t) · words[p, t] ÷ Σ_t tf_q(t) · idf(t) ]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi.corpus.corpus import Corpus, Judgement, Query
from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.corpus.split_words import TOKEN
from promptdsi.engine.words import K1, B, WordTable
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.files import atomic_write
from promptdsi.index.generation import Generation


def export(generation: Generation, to: str, folder: Path) -> list[str]:
    """Write an export into a new folder and return the names of its files."""
    if to not in EXPORTS:
        raise UsageError(f"no export {to!r}; there are {', '.join(EXPORTS)}")
    if folder.exists() and any(folder.iterdir()):
        raise DataError("exists and is not empty", path=folder)
    folder.mkdir(parents=True, exist_ok=True)
    with generation.manifest.as_data_error(generation.store.folder):
        EXPORTS[to](generation, folder)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _faiss(generation: Generation, folder: Path) -> None:
    """An inner-product index over the live rows; its ids are row numbers, which `docids.json` maps to docids, several to one."""
    try:
        import faiss
    except ImportError:
        raise PromptDSIError("the export to FAISS needs faiss: pip install 'promptdsi[faiss]'") from None
    rows = generation.live_rows()
    vectors = generation.table.vectors(rows)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1]))
    index.add_with_ids(vectors, np.array(rows, dtype=np.int64))
    faiss.write_index(index, str(folder / "rows.faiss"))
    _write(folder / "docids.json", {str(row): generation.table.docids[row] for row in rows})
    if generation.words:
        _words(generation.words, len(generation.table), dict(zip(rows, rows, strict=True)), folder)


def _words(words: WordTable, count: int, exported: Mapping[int, int], folder: Path) -> None:
    """The three files of words. `exported` gives the number that each live row has in the export, `count` is the number of all rows.

    Words of the statistics that only deleted documents have are among the terms until a purge: they count in the sum that is divided by.
    """
    numbers = np.full(count, -1, np.int64)
    numbers[list(exported)] = list(exported.values())
    statistics = words.statistics
    vocabulary = {term: number for number, term in enumerate(statistics.terms)}
    rows, columns, weights = [], [], []
    for part, first in zip(words.postings, words.firsts.tolist(), strict=False):
        row = numbers[part.passages + first]
        live, owners = row >= 0, np.repeat(np.arange(len(part.ends)), np.diff(part.pointers))
        terms, column = part.terms, np.empty(len(part.ends), np.int64)
        for term in np.unique(owners[live]).tolist():
            column[term] = vocabulary.setdefault(terms[term], len(vocabulary))
        counts, lengths = part.counts[live].astype(np.float64), part.lengths[part.passages[live]]
        rows.append(row[live])
        columns.append(column[owners[live]])
        weights.append(counts / (counts + K1 * (1 - B + B * lengths / statistics.average)))
    shape = (int(numbers.max(initial=-1)) + 1, len(vocabulary))
    _write_csr(folder / "words.npz", np.concatenate(rows), np.concatenate(columns), np.concatenate(weights), shape)
    with atomic_write(folder / "idf.npy") as file:
        of_d0 = len(statistics.ends)
        np.save(file, np.array([statistics.idf(number if number < of_d0 else -1) for number in range(len(vocabulary))]))
    _write(
        folder / "words.json",
        {
            "weight": words.weight,
            "idf_of_other_words": statistics.idf(-1),
            "split": {"pattern": TOKEN.pattern, "stop_words": sorted(STOPWORDS), "exactly": "promptdsi.corpus.split_words.split_words"},
            "hash": {"function": "blake2b of 8 bytes, hexadecimal", "key": words.salt} if words.salt else None,
            "terms": [term.hex() if words.salt else term.decode("utf-8") for term in vocabulary],
        },
    )


def _write_csr(path: Path, rows: Any, columns: Any, weights: Any, shape: tuple[int, int]) -> None:
    """A sparse matrix in the format of scipy.sparse.save_npz."""
    order = np.lexsort((columns, rows))
    pointers = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    parts = {"indptr": pointers, "indices": columns[order], "data": weights[order].astype(np.float32)}
    with atomic_write(path) as file:
        np.savez(file, format=b"csr", shape=np.array(shape), **parts)


def _beir(generation: Generation, folder: Path) -> None:
    """The stored documents, and the stored training queries as train queries."""
    if generation.manifest.store != "text":
        raise PromptDSIError(f"the index stores no text (--store {generation.manifest.store}), so its documents cannot be exported")
    rows = [row for row in generation.starts.tolist() if row not in generation.table.deleted]  # the first of each document
    documents = [document for row in rows if (document := generation.document(generation.document_number(row)))]
    live = {(generation.origin(row).corpus, generation.table.docids[row]) for row in rows}
    queries, judgements = [], []
    for number in range(len(generation.manifest.corpora)):
        stored = [query for queries_of_document in generation.stored_queries(number).values() for query in queries_of_document]
        for position, query in enumerate(stored):
            if (number, query["docid"]) in live:
                queries.append(Query(f"{number}-{position}", query["text"], query["kind"]))
                judgements.append(Judgement(f"{number}-{position}", query["docid"]))
    Corpus(documents, queries, {"train": judgements} if judgements else {}).write(folder)


def _hugging_face(generation: Generation, folder: Path) -> None:
    """The encoder as transformers and sentence-transformers load it, with the rows."""
    import torch

    from promptdsi.methods.saving import to_bytes
    from promptdsi.model.families import library_config, library_weights

    method = generation.method
    config = method.model_.encoder.config
    weights = library_weights(method.model_.encoder.state_dict(), config)
    for name, tensors in (
        ("model", weights),
        ("rows", {"rows": torch.from_numpy(generation.table.vectors(generation.live_rows()))}),
        ("prompts", method.model_.strategy.state()),
    ):
        if tensors:
            with atomic_write(folder / f"{name}.safetensors") as file:
                file.write(to_bytes(tensors, metadata={"format": "pt"}))
    _write(folder / "config.json", library_config(config))
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(method.tokenizer_.json.encode("utf-8"))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": method.encoding.max_tokens})
    docids = method.model_.rows.docids
    rows = generation.live_rows()
    _write(folder / "docids.json", [docids[row] for row in rows])
    if generation.words:
        _words(generation.words, len(docids), {row: number for number, row in enumerate(rows)}, folder)
    _write(
        folder / "promptdsi.json", {"method": method.name, "generation": generation.manifest.number, "params": generation.manifest.params}
    )
    modules = ["Transformer", "Pooling", *(["Normalize"] if method.encoding.normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    _write(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": paths[number], "type": f"sentence_transformers.models.{kind}"}
            for number, kind in enumerate(modules)
        ],
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": method.encoding.max_tokens, "do_lower_case": False})
    mode = {"word_embedding_dimension": config.width, "pooling_mode_mean_tokens": method.encoding.pooling == "mean"}
    _write(folder / "1_Pooling" / "config.json", mode | {"pooling_mode_cls_token": method.encoding.pooling == "first"})
    with atomic_write(folder / "README.md") as file:
        file.write(_card(generation).encode("utf-8"))


def _card(generation: Generation) -> str:
    manifest, method = generation.manifest, generation.method
    corpora = "\n".join(f"| {corpus.corpus} | {corpus.documents:,} | {corpus.since} |" for corpus in manifest.summary().corpora)
    prompts = (
        f"Queries are encoded with prompts (`{method.prompts}`) that plain libraries do not apply: with `model.safetensors` alone "
        "scores are those *without* prompts. Use `promptdsi` for exact results."
        if manifest.prompts
        else "No prompts: the encoder below gives exactly the index's query vectors."
    )
    unit = ", unit length" if method.encoding.normalize else ""
    words = (
        f"Words add to the score of a row p: {generation.words.weight:.4g} · Σ tf(t) · idf(t) · words[p, t] ÷ Σ tf(t) · idf(t), over\n"
        "the words t of the query; tf(t) is how often the query contains t. `words.npz` is the sparse matrix of rows × terms\n"
        "(`scipy.sparse.load_npz`), `idf.npy` the idf of each term; `words.json` gives the terms, the weight, the idf of any other word,\n"
        "and how texts are split into words."
        if generation.words
        else "Words do not count: the inner product is the score."
    )
    return f"""---
library_name: promptdsi
pipeline_tag: sentence-similarity
tags: [differentiable-search-index, retrieval, continual-learning]
---

# A differentiable search index

Generation {manifest.number}, {manifest.documents:,} documents, width {method.model_.rows.width}, by promptdsi {manifest.written_by}.
A query's vector ({method.encoding.pooling} over tokens{unit}; at most {method.encoding.max_tokens} tokens) is scored by inner product
against `rows.safetensors`; row *i* belongs to entry *i* of `docids.json`. A document has a row for each of its passages, and its score is
that of its best row. Ties: docid ascending.

{words}

{prompts}

| corpus | documents | since generation |
|---|---|---|
{corpora}

Trained on documents of its owner. Rows and weights may reveal something about them; share this folder as you would share the
documents.
"""


EXPORTS: dict[str, Callable[[Generation, Path], None]] = {"faiss": _faiss, "beir": _beir, "hf": _hugging_face}


def _write(path: Path, value: Any) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))
