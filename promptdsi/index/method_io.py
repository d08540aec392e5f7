"""The method of a generation: built from parameters, loaded from blobs, and what it leaves in blobs after training.

Training reads only what `check_training_blobs` checks: encoder, tokenizer, rows, ids and prompts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, Judgement, Query
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.evaluation.evaluate import load_queries
from promptdsi.index.blobs import Documents, Ids
from promptdsi.index.generation import as_data_error, check_counts, row_names
from promptdsi.index.manifest import Entry, Manifest
from promptdsi.index.store import Store
from promptdsi.methods import methods
from promptdsi.methods.options import current_params, merge_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.methods.storage import DocumentBlock, Learned, assemble, to_bytes
from promptdsi.model.config import EncoderConfig
from promptdsi.training.examples import TrainingPair


def method_class(name: str) -> type[PromptDSI]:
    """A method an index can hold: encoder and old rows stay frozen, and only blobs of the index are needed to continue."""
    suitable = [method for method, kind in methods().items() if issubclass(kind, PromptDSI) and kind.rehearsal_free]
    if name not in methods():
        raise UsageError(f"no method {name!r}; an index can hold {' and '.join(suitable)}")
    if name not in suitable:
        why = "leave the encoder and all old rows as they are and keep no query or document to learn from again"
        raise UsageError(f"an index cannot hold {name}: only {' and '.join(suitable)} {why}; promptdsi bench runs the others")
    kind = methods()[name]
    assert issubclass(kind, PromptDSI)
    return kind


def make_method(name: str, preset: str, params: Mapping[str, Any]) -> PromptDSI:
    """A method from a preset and parameters: nested, with dotted keys, or under the flat names of earlier releases."""
    if preset not in PRESETS:
        raise UsageError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    method = method_class(name).from_params(merge_params(PRESETS[preset], current_params(params)))
    if method.retired:
        raise UsageError(f"{name} has no parameter {min(method.retired)!r} any more")
    if name == "rows" and method.prompts != "none":
        raise UsageError("the method rows has no prompts; use --method promptdsi with --prompts")
    return method


def check_training_blobs(store: Store, manifest: Manifest) -> None:
    """Verify the checksums of what training reads: every blob but documents, probes and queries."""
    names = {manifest.encoder, manifest.tokenizer, *manifest.prompts.values()}
    store.check(manifest, names | {name for entry in manifest.corpora for name in (entry.rows, entry.ids)})


def load_method(store: Store, manifest: Manifest, *, device: str = "auto", last: int | None = None) -> PromptDSI:
    """The method of a generation. `last` is a corpus whose rows are put behind all others, so that they can be trained."""
    order = [*(number for number in range(len(manifest.corpora)) if number != last), *([] if last is None else [last])]
    firsts, deleted_positions = manifest.firsts(), manifest.deleted_positions()
    blocks: list[DocumentBlock] = []
    deleted: set[int] = set()
    first = 0
    for number in order:
        entry = manifest.corpora[number]
        rows, docids = store.blobs.tensors(entry.rows)["rows"], store.ids(entry.ids).docids
        check_counts(store, manifest, entry, rows.shape, len(docids))
        deleted |= {first + position for position in deleted_positions[number]}
        first += entry.count
        blocks.append(DocumentBlock(row_names(docids, firsts[number]), rows))
    tensors = {name: store.blobs.tensors(name) for name in set(manifest.prompts.values())}
    learned = Learned(
        EncoderConfig(**manifest.config),
        store.blobs.tensors(manifest.encoder),
        store.blobs.text(manifest.tokenizer),
        blocks,
        deleted,
        {name: tensors[blob][name] for name, blob in manifest.prompts.items()},
        manifest.metadata,
        {},
    )
    with as_data_error(store, manifest):
        return assemble(method_class(manifest.method), manifest.params | {"device": device, "offline": True}, learned)


def live_ids(store: Store, manifest: Manifest) -> dict[str, tuple[int, str]]:
    """Row and content hash of each document that can be retrieved, by docid."""
    deleted, live, row = set(manifest.tombstones), {}, 0
    for entry in manifest.corpora:
        ids: Ids = store.ids(entry.ids)
        for position, docid in enumerate(ids.docids):
            if docid is not None and row not in deleted:
                live[docid] = (row, ids.content_hash(position))
            row += 1
    return live


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
) -> Entry:
    """Write the blobs of a corpus that was just trained; `documents` says what is stored of them, `kept_pairs` are queries to store."""
    block, blobs = method.model_.rows.blocks[-1], store.blobs
    if not bool(torch.isfinite(block).all()):
        raise PromptDSIError(f"the rows of {corpus.name} are not finite; nothing is stored")
    return Entry(
        name=name,
        since=since,
        count=len(corpus),
        rows=blobs.put_rows(block.detach().cpu().numpy(), since=since),
        ids=blobs.put_json(Ids.of(corpus.documents, since=since)._asdict()),
        documents=None if documents == "none" else blobs.put_documents(enumerate(corpus.documents), since=since, store=documents),
        probes=blobs.put_list(_probes(corpus, keep_probes, method.seed), since=since) if keep_probes else None,
        queries=None if kept_pairs is None else blobs.put_list(_queries(corpus, kept_pairs), since=since),
        fast=fast,
    )


def _probes(corpus: Corpus, number: int, seed: int) -> list[dict[str, Any]]:
    """A seeded sample of dev queries."""
    dev = load_queries(corpus, "dev")
    sample = random.Random(seed).sample(dev, min(number, len(dev)))
    return [{"text": query.text, "docids": sorted(query.relevant)} for query in sample]


def _queries(corpus: Corpus, pairs: Sequence[TrainingPair]) -> list[dict[str, Any]]:
    """The queries the corpus was trained on."""
    annotated = {(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))}
    kinds = {True: "annotated", False: "pseudo"}
    return [{"docid": pair.docid, "text": pair.text, "kind": kinds[tuple(pair) in annotated]} for pair in pairs]


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


def stored_corpus(store: Store, manifest: Manifest, number: int) -> Corpus:
    """A corpus from what the index stores of it: the live documents, and their training queries where those were stored."""
    entry = manifest.corpora[number]
    if entry.documents is None or manifest.store != "text":
        raise PromptDSIError(
            f"the index stores no text (--store {manifest.store}), so {entry.name} cannot be trained from it; "
            "delete its documents and add them again, under another --name and without --fast"
        )
    deleted = set(manifest.deleted_positions()[number])
    store.check(manifest, {name for name in (entry.documents, entry.queries) if name})
    opened = Documents(store.blobs.path(entry.documents))
    documents = [document for position, document in opened if position not in deleted]
    opened.close()
    live = {document.docid for document in documents}
    stored = [query for query in store.blobs.list(entry.queries) if query["docid"] in live] if entry.queries else []
    queries = [Query(f"q{number}", query["text"], query["kind"]) for number, query in enumerate(stored)]
    judgements = [Judgement(f"q{number}", query["docid"]) for number, query in enumerate(stored)]
    return Corpus(documents, queries, {"train": judgements}, name=entry.name)
