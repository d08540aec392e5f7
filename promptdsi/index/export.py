"""Exports: rows for FAISS, documents as a BEIR folder, encoder and rows as a Hugging Face style folder with a model card."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import Judgement, Query
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.files import atomic_write
from promptdsi.index.snapshot import Snapshot


def export(snapshot: Snapshot, to: str, folder: Path) -> list[str]:
    """Write an export into a new folder and return the names of its files."""
    if to not in EXPORTS:
        raise UsageError(f"no export {to!r}; there are {', '.join(EXPORTS)}")
    if folder.exists() and any(folder.iterdir()):
        raise DataError("exists and is not empty", path=folder)
    folder.mkdir(parents=True, exist_ok=True)
    EXPORTS[to](snapshot, folder)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def live(snapshot: Snapshot) -> list[int]:
    """The rows of all documents that can be found."""
    return [row for row in range(len(snapshot.table)) if row not in snapshot.table.deleted]


def _matrix(snapshot: Snapshot) -> NDArray[np.float32]:
    """The living rows: (N, D)."""
    return snapshot.table.vectors(live(snapshot))


def _faiss(snapshot: Snapshot, folder: Path) -> None:
    """An inner-product index over the living rows; its ids are row numbers, `docids.json` says whose."""
    try:
        import faiss
    except ImportError:
        raise PromptDSIError("the export to FAISS needs faiss: pip install 'promptdsi[faiss]'") from None
    matrix = _matrix(snapshot)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(matrix.shape[1]))
    index.add_with_ids(matrix, np.array(live(snapshot), dtype=np.int64))
    faiss.write_index(index, str(folder / "rows.faiss"))
    docids = snapshot.table.docids
    _write(folder / "docids.json", {str(row): docids[row] for row in live(snapshot)})


def _beir(snapshot: Snapshot, folder: Path) -> None:
    """The stored documents, and the queries that were kept as train queries."""
    if snapshot.manifest.store != "text":
        raise PromptDSIError(f"the index stores no text (--store {snapshot.manifest.store}), so its documents cannot be exported")
    rows = live(snapshot)
    documents = [document for row in rows if (document := snapshot.document(row))]
    here = {(snapshot.place(row).number, snapshot.table.docids[row]) for row in rows}
    kept = [
        (f"{number}-{place}", one)
        for number in range(len(snapshot.manifest.corpora))
        for place, one in enumerate(one for some in snapshot.kept_queries(number).values() for one in some)
        if (number, one["docid"]) in here
    ]
    queries = [Query(queryid, one["text"], one["kind"]) for queryid, one in kept]
    Corpus(documents, queries, {"train": [Judgement(queryid, one["docid"]) for queryid, one in kept]} if kept else {}).write(folder)


def _hugging_face(snapshot: Snapshot, folder: Path) -> None:
    """The encoder as transformers and sentence-transformers load it, the rows beside it."""
    import torch

    from promptdsi.methods.storage import to_bytes
    from promptdsi.model.families import library_config, library_weights

    method = snapshot.method
    config = method.model_.encoder.config
    weights = library_weights(method.model_.encoder.state_dict(), config)
    for name, tensors in (
        ("model", weights),
        ("rows", {"rows": torch.from_numpy(_matrix(snapshot))}),
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
    _write(folder / "docids.json", [docids[row] for row in live(snapshot)])
    _write(folder / "promptdsi.json", {"method": method.name, "generation": snapshot.manifest.number, "params": snapshot.manifest.params})
    modules = ["Transformer", "Pooling", *(["Normalize"] if method.encoding.normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    _write(
        folder / "modules.json",
        [
            {"idx": place, "name": str(place), "path": paths[place], "type": f"sentence_transformers.models.{kind}"}
            for place, kind in enumerate(modules)
        ],
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": method.encoding.max_tokens, "do_lower_case": False})
    mode = {"word_embedding_dimension": config.width, "pooling_mode_mean_tokens": method.encoding.pooling == "mean"}
    _write(folder / "1_Pooling" / "config.json", mode | {"pooling_mode_cls_token": method.encoding.pooling == "first"})
    with atomic_write(folder / "README.md") as file:
        file.write(_card(snapshot).encode("utf-8"))


def _card(snapshot: Snapshot) -> str:
    manifest, method = snapshot.manifest, snapshot.method
    counted = zip(manifest.corpora, manifest.deleted_positions(), strict=True)
    corpora = "\n".join(f"| {entry.name} | {entry.count - len(gone):,} | {entry.since} |" for entry, gone in counted)
    prompts = (
        f"Queries are encoded with prompts (`{method.prompts}`) that plain libraries do not apply: with `model.safetensors` alone "
        "scores are those *without* prompts. Use `promptdsi` for exact results."
        if manifest.prompts
        else "No prompts: the encoder below gives exactly the index's query vectors."
    )
    unit = ", unit length" if method.encoding.normalize else ""
    return f"""---
library_name: promptdsi
pipeline_tag: sentence-similarity
tags: [differentiable-search-index, retrieval, continual-learning]
---

# A differentiable search index

Generation {manifest.number}, {manifest.documents:,} documents, width {method.model_.rows.width}, by promptdsi {manifest.written_by}.
A query's vector ({method.encoding.pooling} over tokens{unit}; at most {method.encoding.max_tokens} tokens) is scored by inner product
against `rows.safetensors`; row *i* belongs to entry *i* of `docids.json`. Ties: docid ascending.

{prompts}

| corpus | documents | since generation |
|---|---|---|
{corpora}

Trained on documents of its owner. Rows and weights may reveal something about them; share this folder as you would share the
documents.
"""


EXPORTS: dict[str, Callable[[Snapshot, Path], None]] = {"faiss": _faiss, "beir": _beir, "hf": _hugging_face}


def _write(path: Path, value: Any) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))
