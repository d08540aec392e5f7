"""The method of a generation: built from parameters, loaded from blobs, written to blobs after training.

Training reads only `training_blobs`: encoder, tokenizer, rows, ids, words and prompts. On a cluster old rows, ids and words stay where
they are, and `Rows.elsewhere` asks the shards.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.evaluation.evaluate import load_queries
from promptdsi.index.blobs import Ids
from promptdsi.index.entry import Entry
from promptdsi.index.manifest import Manifest
from promptdsi.index.store import Store
from promptdsi.methods import methods
from promptdsi.methods.options import current_params, merge_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.methods.saving import DocumentBlock, Learned, SavedWords, assemble, to_bytes
from promptdsi.model.config import EncoderConfig, torch_device
from promptdsi.model.rows import CHUNK, OldRows
from promptdsi.training.examples import PASSAGE, TrainingPair

INDEX_METHODS = ("promptdsi", "rows")  # the other methods with a frozen encoder are special cases of these
EFFORTS: dict[str, dict[str, Any]] = {
    "quick": {"learn": "nothing"},
    "normal": {"learn": "rows"},
    "full": {"learn": "everything", "epochs": 3},
}


def method_class(name: str) -> type[PromptDSI]:
    """A method an index can hold: encoder and old rows stay frozen, and only blobs of the index are needed to continue."""
    if name not in INDEX_METHODS:
        why = "leave the encoder and all old rows as they are and keep no query or document to learn from again"
        sentence = f"an index cannot hold {name}: only {' and '.join(INDEX_METHODS)} {why}; promptdsi bench runs the others"
        raise UsageError(sentence if name in methods() else f"no method {name!r}; an index can hold {' and '.join(INDEX_METHODS)}")
    kind = methods()[name]
    assert issubclass(kind, PromptDSI)
    return kind


def effort_params(effort: str | None) -> dict[str, Any]:
    """What a level of effort sets; nothing where none is given, and the preset decides."""
    if effort is not None and effort not in EFFORTS:
        raise UsageError(f"effort={effort!r} must be one of {', '.join(EFFORTS)}")
    return {f"fit.{option}": value for option, value in EFFORTS[effort].items()} if effort else {}


def make_method(name: str, preset: str, params: Mapping[str, Any]) -> PromptDSI:
    """A method from a preset and parameters: nested, with dotted keys, or under the flat names of earlier releases."""
    if preset not in PRESETS:
        raise UsageError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    method = method_class(name).from_params(merge_params(PRESETS[preset], current_params(params)))
    if method.retired:
        raise UsageError(f"{name} has no parameter {min(method.retired)!r} any more")
    if name == "rows" and method.prompts != "none":
        raise UsageError("the method rows has no prompts; use --method promptdsi with --prompts")
    if method.prompt_options.get("as_published"):
        raise UsageError("with as_published a result depends on the other queries of its batch: promptdsi bench runs it, no index")
    return method


def model_blobs(manifest: Manifest) -> set[str]:
    """The encoder and what belongs to it; with shards, all that training reads here."""
    names = {manifest.encoder, manifest.tokenizer, *manifest.prompts.values()}
    return names | ({manifest.statistics} if manifest.statistics else set())


def training_blobs(manifest: Manifest) -> set[str]:
    """What training reads: every blob but documents, probes and queries."""
    return model_blobs(manifest) | {name for entry in manifest.corpora for name in (entry.rows, entry.ids, entry.words) if name}


def load_method(
    store: Store, manifest: Manifest, *, device: str = "auto", last: Collection[int] = (), elsewhere: OldRows | None = None
) -> PromptDSI:
    """The method of a generation. `last` are the entries of a corpus whose rows are put behind all others, so that they can be trained.

    Where the rows lie `elsewhere`, neither rows nor ids nor words are read.
    """
    torch_device(device)  # before the files: a wrong device is not their fault
    order = [*(number for number in range(len(manifest.corpora)) if number not in last), *last]
    with manifest.as_data_error(store.folder, UsageError):
        blocks, deleted = _document_blocks(store, manifest, order) if elsewhere is None else ([], set())
        if last:
            joined = blocks[-len(last) :]
            docids = [docid for block in joined for docid in block.docids]
            blocks = [*blocks[: -len(last)], DocumentBlock(docids, torch.cat([block.rows for block in joined]))]
        tensors = {name: store.blobs.tensors(name) for name in set(manifest.prompts.values())}
        learned = Learned(
            EncoderConfig(**manifest.config),
            store.blobs.tensors(manifest.encoder),
            store.blobs.text(manifest.tokenizer),
            blocks,
            deleted,
            {name: tensors[blob][name] for name, blob in manifest.prompts.items()},
            {"d0_rows": sum(manifest.corpora[number].row_count for number in manifest.parts()[0])} | manifest.metadata,
            {},
            _saved_words(store, manifest, order if elsewhere is None else ()),
        )
        method = assemble(method_class(manifest.method), manifest.params | {"device": device, "offline": True}, learned)
    method.model_.rows.elsewhere = elsewhere
    return method


def _document_blocks(store: Store, manifest: Manifest, order: Sequence[int]) -> tuple[list[DocumentBlock], set[int]]:
    """The rows of some entries in this order, and which of them are deleted."""
    deleted_positions = manifest.deleted_positions()
    blocks: list[DocumentBlock] = []
    deleted: set[int] = set()
    first = 0
    for number in order:
        entry = manifest.corpora[number]
        ids = store.ids(entry.ids)
        rows = store.blobs.tensors(entry.rows)["rows"]
        names = manifest.document_names(number, ids.docids, ids.passages, rows.shape)
        starts = list(accumulate(ids.passages, initial=first))
        deleted |= {row for position in deleted_positions[number] for row in range(starts[position], starts[position + 1])}
        docids = [name for name, count in zip(names, ids.passages, strict=True) for _ in range(count)]
        for begin, end in entry.spans():  # a block has no docid twice
            low, high = starts[begin] - first, starts[end] - first
            blocks.append(DocumentBlock(docids[low:high], rows[low:high]))
        first = starts[-1]
    return blocks, deleted


def _saved_words(store: Store, manifest: Manifest, order: Sequence[int]) -> SavedWords | None:
    if manifest.statistics is None:
        return None
    names = [manifest.corpora[number].words for number in order]
    postings = [store.blobs.words(name) for name in names if name]
    if [len(part.lengths) for part in postings] != [manifest.corpora[number].row_count for number in order]:
        raise ValueError("words of other passages than the rows")
    return SavedWords(postings, store.blobs.statistics(manifest.statistics))


def write_corpus(
    store: Store,
    corpus: Corpus,
    method: PromptDSI,
    *,
    since: int,
    name: str,
    documents: str,
    keep_probes: int,
    kept_pairs: Sequence[TrainingPair] | None,
    fast: bool,
) -> list[Entry]:
    """Write the blobs of a corpus that was just trained, piece by piece: its entries.

    `documents` says what is stored of them, `kept_pairs` are queries to store.
    """
    block, blobs, passages = method.model_.rows.blocks[-1], store.blobs, method.passages(corpus)
    if not all(bool(torch.isfinite(piece).all()) for piece in block.detach().split(CHUNK)):
        raise PromptDSIError(f"the rows of {corpus.name} are not finite; nothing is stored")
    pieces, boundaries, entries = passages.pieces(), passages.boundaries(), list[Entry]()
    words = method.words_.parts[-len(pieces) :] if method.words_ else ()
    queries = None if kept_pairs is None else _stored_queries(corpus, kept_pairs)
    starts = [0, *accumulate(passages.counts)]
    for part, piece in enumerate(pieces):
        some, count = corpus.documents[piece.start : piece.stop], starts[piece.stop] - starts[piece.start]
        rows = block[starts[piece.start] : starts[piece.stop]].detach().cpu().numpy()
        ids = Ids.of(some, since=since, boundaries=boundaries[piece.start : piece.stop])
        entry = Entry(
            name=name,
            since=since,
            count=len(some),
            rows=blobs.put_rows(rows, since=since, part=part),
            ids=blobs.put_json(ids._asdict()),
            passages=count if count > len(some) else 0,
            words=blobs.put_words(words[part], since=since, part=part) if words else None,
            documents=None if documents == "none" else blobs.put_documents(enumerate(some), since=since, store=documents),
            fast=fast,
            part=part,
        )
        if queries is not None:
            docids = {document.docid for document in some}
            entry = replace(entry, queries=blobs.put_list([query for query in queries if query["docid"] in docids], since=since))
        entries.append(entry)
    if keep_probes:
        dev = load_queries(corpus, "dev")
        sample = random.Random(method.seed).sample(dev, min(keep_probes, len(dev)))
        probes = [{"text": query.text, "docids": sorted(query.relevant)} for query in sample]
        entries[0] = replace(entries[0], probes=blobs.put_list(probes, since=since))
    return entries


def _stored_queries(corpus: Corpus, pairs: Sequence[TrainingPair]) -> list[dict[str, Any]]:
    """Training queries as they are stored."""
    annotated = {(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))}
    kinds = ["annotated" if pair[:2] in annotated else "pseudo" for pair in pairs]
    return [
        {"docid": pair.docid, "text": pair.text, "kind": kind} | ({} if pair.passage is None else {"passage": pair.passage})
        for pair, kind in zip(pairs, kinds, strict=True)
    ]


def write_rows(store: Store, entries: Sequence[Entry], rows: Tensor) -> list[Entry]:
    """The entries of a corpus with new rows, which are written; the corpus is trained now."""
    written, first = [], 0
    for entry in entries:
        block = rows[first : first + entry.row_count].detach().cpu().numpy()
        written.append(replace(entry, rows=store.blobs.put_rows(block, since=entry.since, part=entry.part), fast=False))
        first += entry.row_count
    return written


def write_prompts(store: Store, before: dict[str, str], state: dict[str, Tensor]) -> dict[str, str]:
    """Write the tensors of a strategy that are new or have changed; the others stay in the blobs they were in."""
    stored = {name: store.blobs.tensors(name) for name in set(before.values())}
    state = {name: tensor.cpu() for name, tensor in state.items() if tensor is not None}
    same = {name: blob for name, blob in before.items() if name in state and torch.equal(stored[blob][name], state[name])}
    changed = {name: tensor for name, tensor in state.items() if name not in same}
    if not changed:
        return same
    blob = store.blobs.put(to_bytes(changed), "safetensors")
    return dict(sorted((same | dict.fromkeys(changed, blob)).items()))


def stored_corpus(store: Store, manifest: Manifest, numbers: Sequence[int]) -> Corpus:
    """A corpus, given by its entries, from what the index stores of it: live documents, and training queries where those are stored."""
    entries, deleted_positions = [manifest.corpora[number] for number in numbers], manifest.deleted_positions()
    if entries[0].documents is None or manifest.store != "text":
        raise PromptDSIError(
            f"the index stores no text (--store {manifest.store}), so {entries[0].name} cannot be trained from it; "
            "delete its documents and add them again, under another --name and without --fast"
        )
    documents: list[Document] = []
    stored: list[dict[str, Any]] = []
    for number, entry in zip(numbers, entries, strict=True):
        store.check(manifest, entry.files("documents") + entry.files("queries"))
        deleted = set(deleted_positions[number])
        documents += [document for position, document in store.documents(entry) if position not in deleted]
        stored += store.blobs.list(entry.queries, "queries") if entry.queries else []
    live = {document.docid for document in documents}
    stored = [query for query in stored if query["docid"] in live]
    queries = [Query(f"q{number}", query["text"], query["kind"], {PASSAGE: query.get("passage")}) for number, query in enumerate(stored)]
    judgements = [Judgement(f"q{number}", query["docid"]) for number, query in enumerate(stored)]
    return Corpus(documents, queries, {"train": judgements}, name=entries[0].name)
