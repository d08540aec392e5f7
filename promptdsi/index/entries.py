"""What a corpus leaves in an index: its rows, ids and documents, and probes or queries where the owner keeps some."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import Judgement, Query
from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.evaluate import load_queries
from promptdsi.index.documents import Documents, write_documents
from promptdsi.index.ids import Ids
from promptdsi.index.lists import get_list, put_list
from promptdsi.index.manifest import Entry, Manifest
from promptdsi.index.rows import put_rows
from promptdsi.index.store import Store
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.methods.storage import to_bytes

if TYPE_CHECKING:
    from promptdsi.index.options import Options


def put_entry(store: Store, corpus: Corpus, method: PromptDSI, *, since: int, options: Options) -> Entry:
    """Write the blobs of a corpus that was just learned."""
    block = method.model_.rows.blocks[-1]
    if not bool(torch.isfinite(block).all()):
        raise PromptDSIError(f"the rows of {corpus.name} are not finite; nothing is kept")
    keep = store.manifest().store if since > 1 else options.store  # decided once, when the index is created
    documents = None if keep == "none" else write_documents(store.blobs, enumerate(corpus.documents), since=since, store=keep)
    return Entry(
        name=corpus.name,
        since=since,
        count=len(corpus),
        rows=put_rows(store, block.detach().cpu().numpy(), since=since),
        ids=store.blobs.put_json(Ids.of(corpus.documents, since=since).to_json()),
        documents=documents,
        probes=put_list(store, _probes(corpus, options.keep_probes, method.seed), since=since) if options.keep_probes else None,
        queries=put_list(store, _queries(corpus, method, first=since == 1), since=since) if options.keep_queries else None,
        fast=options.fast,
    )


def _probes(corpus: Corpus, number: int, seed: int) -> list[dict[str, Any]]:
    """A seeded choice of dev queries."""
    dev = load_queries(corpus, "dev")
    chosen = random.Random(seed).sample(dev, min(number, len(dev)))
    return [{"text": one.text, "docids": sorted(one.relevant)} for one in chosen]


def _queries(corpus: Corpus, method: PromptDSI, *, first: bool) -> list[dict[str, Any]]:
    """The queries the corpus was learned from."""
    annotated = {(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))}
    kinds = {True: "annotated", False: "pseudo"}
    return [
        {"docid": one.docid, "text": one.text, "kind": kinds[tuple(one) in annotated]}
        for one in method.training_pairs(corpus, new=not first)
    ]


def put_prompts(store: Store, before: dict[str, str], state: dict[str, Tensor]) -> dict[str, str]:
    """Write the tensors of a strategy that are new or have changed; the others stay in the blobs they were in."""
    held = {name: store.blobs.tensors(name) for name in set(before.values())}
    state = {name: tensor.cpu() for name, tensor in state.items() if tensor is not None}
    same = {name: blob for name, blob in before.items() if name in state and torch.equal(held[blob][name], state[name])}
    changed = {name: tensor for name, tensor in state.items() if name not in same}
    if not changed:
        return same
    blob = store.blobs.put(to_bytes(changed), "safetensors")
    return dict(sorted((same | dict.fromkeys(changed, blob)).items()))


def stored_corpus(store: Store, manifest: Manifest, number: int) -> Corpus:
    """A corpus from what the index kept of it: the living documents, and their queries where those were kept."""
    entry = manifest.corpora[number]
    if entry.documents is None or manifest.store != "text":
        raise PromptDSIError(
            f"the index stores no text (--store {manifest.store}), so {entry.name} cannot be trained from it; "
            "delete its documents and add them again, under another --name and without --fast"
        )
    gone = set(manifest.deleted_positions()[number])
    store.check(manifest, {name for name in (entry.documents, entry.queries) if name})
    opened = Documents(store.blobs.path(entry.documents))
    documents = [document for place, document in opened if place not in gone]
    opened.close()
    here = {document.docid for document in documents}
    kept = [one for one in get_list(store, entry.queries) if one["docid"] in here] if entry.queries else []
    queries = [Query(f"q{place}", one["text"], one["kind"]) for place, one in enumerate(kept)]
    judgements = [Judgement(f"q{place}", one["docid"]) for place, one in enumerate(kept)]
    return Corpus(documents, queries, {"train": judgements}, name=entry.name)
