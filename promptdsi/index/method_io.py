"""The method of a generation: built from parameters, loaded from blobs, written to blobs after training, and what is measured of it.

Training reads only `training_blobs`: encoder, tokenizer, rows, ids and prompts. Probe queries are opened after the new blobs are on
disk: training cannot depend on them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus, Judgement, Query, whole_text
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.evaluation.evaluate import EvalQuery, load_queries, rank_queries, values
from promptdsi.index.blobs import Ids
from promptdsi.index.manifest import Entry, Manifest
from promptdsi.index.results import Drift, Report, WorkEstimate
from promptdsi.index.store import Store
from promptdsi.methods import methods
from promptdsi.methods.options import current_params, merge_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.methods.saving import DocumentBlock, Learned, SavedWords, assemble, to_bytes
from promptdsi.model.config import EncoderConfig, torch_device
from promptdsi.model.rows import CHUNK
from promptdsi.training.distributed import team
from promptdsi.training.encoding import encode_batches
from promptdsi.training.examples import PASSAGE, TrainingPair

CHARACTERS_PER_TOKEN, CHARACTERS_PER_SPAN, BACKWARD = 4.5, 55, 3.2  # a training step costs BACKWARD forward passes
FIXED_BYTES = 600_000_000  # Python and its libraries
MULTIPLICATIONS_PER_SECOND = 1e11
REPORTED = 500  # dev queries and documents that a report looks at, sample at random: more would delay it and tell little
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


def training_blobs(manifest: Manifest) -> set[str]:
    """What training reads: every blob but documents, probes and queries."""
    names = {manifest.encoder, manifest.tokenizer, *manifest.prompts.values()}
    names |= {manifest.statistics} if manifest.statistics else set()
    return names | {name for entry in manifest.corpora for name in (entry.rows, entry.ids, entry.words) if name}


def load_method(store: Store, manifest: Manifest, *, device: str = "auto", last: int | None = None) -> PromptDSI:
    """The method of a generation. `last` is a corpus whose rows are put behind all others, so that they can be trained."""
    torch_device(device)  # before the files: a wrong device is not their fault
    order = [*(number for number in range(len(manifest.corpora)) if number != last), *([] if last is None else [last])]
    deleted_positions = manifest.deleted_positions()
    blocks: list[DocumentBlock] = []
    deleted: set[int] = set()
    with manifest.as_data_error(store.folder, UsageError):
        for number in order:
            entry, first = manifest.corpora[number], sum(len(block.docids) for block in blocks)
            ids = store.ids(entry.ids)
            rows, passages = store.blobs.tensors(entry.rows)["rows"], ids.passages
            names = manifest.document_names(number, ids.docids, passages, rows.shape)
            starts = list(accumulate(passages, initial=0))
            deleted |= {first + row for position in deleted_positions[number] for row in range(starts[position], starts[position + 1])}
            docids = [name for name, count in zip(names, passages, strict=True) for _ in range(count)]
            for begin, end in entry.spans():  # a block has no docid twice
                blocks.append(DocumentBlock(docids[starts[begin] : starts[end]], rows[starts[begin] : starts[end]]))
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
            _saved_words(store, manifest, order),
        )
        return assemble(method_class(manifest.method), manifest.params | {"device": device, "offline": True}, learned)


def _saved_words(store: Store, manifest: Manifest, order: Sequence[int]) -> SavedWords | None:
    if manifest.statistics is None:
        return None
    names = [manifest.corpora[number].words for number in order]
    postings = [store.blobs.words(name) for name in names if name]
    if [len(part.lengths) for part in postings] != [manifest.corpora[number].row_count for number in order]:
        raise ValueError("words of other passages than the rows")
    return SavedWords(postings, store.blobs.statistics(manifest.statistics))


def live_ids(store: Store, manifest: Manifest) -> dict[str, tuple[int, str]]:
    """Row and content hash of each document that can be retrieved, by docid."""
    deleted, live, row = set(manifest.tombstones), {}, 0
    for entry in manifest.corpora:
        for docid, content in store.hashed_docids(entry):
            if docid is not None and row not in deleted:
                live[docid] = (row, content)
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
    if not all(bool(torch.isfinite(piece).all()) for piece in block.detach().split(CHUNK)):
        raise PromptDSIError(f"the rows of {corpus.name} are not finite; nothing is stored")
    entry = Entry(
        name=name,
        since=since,
        count=len(corpus),
        rows=blobs.put_rows(block.detach().cpu().numpy(), since=since),
        ids=blobs.put_json(Ids.of(corpus.documents, since=since, boundaries=method.passages(corpus).boundaries())._asdict()),
        passages=len(block) if len(block) > len(corpus) else 0,
        words=blobs.put_words(method.words_.parts[-1], since=since) if method.words_ else None,
        documents=None if documents == "none" else blobs.put_documents(enumerate(corpus.documents), since=since, store=documents),
        fast=fast,
    )
    if keep_probes:
        dev = load_queries(corpus, "dev")
        sample = random.Random(method.seed).sample(dev, min(keep_probes, len(dev)))
        probes = [{"text": query.text, "docids": sorted(query.relevant)} for query in sample]
        entry = replace(entry, probes=blobs.put_list(probes, since=since))
    if kept_pairs is not None:
        annotated = {(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))}
        kinds = ["annotated" if pair[:2] in annotated else "pseudo" for pair in kept_pairs]
        queries = [
            {"docid": pair.docid, "text": pair.text, "kind": kind} | ({} if pair.passage is None else {"passage": pair.passage})
            for pair, kind in zip(kept_pairs, kinds, strict=True)
        ]
        entry = replace(entry, queries=blobs.put_list(queries, since=since))
    return entry


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
    opened = store.documents(entry)
    documents = [document for position, document in opened if position not in deleted]
    opened.close()
    live = {document.docid for document in documents}
    stored = [query for query in store.blobs.list(entry.queries, "queries") if query["docid"] in live] if entry.queries else []
    queries = [Query(f"q{number}", query["text"], query["kind"], {PASSAGE: query.get("passage")}) for number, query in enumerate(stored)]
    judgements = [Judgement(f"q{number}", query["docid"]) for number, query in enumerate(stored)]
    return Corpus(documents, queries, {"train": judgements}, name=entry.name)


def estimate_work(method: PromptDSI, corpus: Corpus, pairs: Sequence[TrainingPair], *, first: bool) -> WorkEstimate:
    """Documents, queries, and roughly how long and how much memory, from the encoder's speed on a few texts; no pairs: no training."""
    encoding, options = method.encoding, method.fit_options if first else method.add_options
    annotated = [pair.query.text for pair in corpus.pairs("train", kinds=("annotated",))]
    limit = math.inf if encoding.passage_tokens else encoding.document_tokens * encoding.document_windows
    document_tokens = [len(whole_text(document)) / CHARACTERS_PER_TOKEN for document in corpus.documents]
    speed = _tokens_per_second(method, [pair.text for pair in pairs[:256]] or [document.text for document in corpus.documents[:32]])
    new = len(method.passages(corpus).docids)
    width, rows = method.model_.rows.width, -(-(len(method.model_.rows) + new) // team().size)  # of each process
    generated = method.pseudo_queries * new  # at most; exact once there are pairs
    lengths = [len(pair.text) for pair in pairs] or [*map(len, annotated), *[CHARACTERS_PER_SPAN] * generated]
    encode = sum(min(tokens, limit) for tokens in document_tokens) / speed
    epoch = sum(min(2 + length / CHARACTERS_PER_TOKEN, encoding.max_tokens) for length in lengths) / speed
    products = 6 * width * new * len(lengths) / MULTIPLICATIONS_PER_SECOND  # of an epoch
    frozen, trained = encode + epoch + products * options.epochs, encode + (epoch * BACKWARD + products) * options.epochs
    by_level = {"nothing": encode, "rows": frozen, "everything": trained}
    level = method.fit_options.learn if first else "nothing" if not pairs else "rows" if method.prompts == "none" else "everything"
    memory = 4 * sum(weight.numel() for weight in method.model_.encoder.parameters())
    if first and level == "everything":
        memory = 4 * memory + 16 * rows * width + 4 * 2 * options.batch_size * rows
    elif pairs:
        memory += 4 * rows * width + 4 * len(pairs) * width + 4 * 2 * options.batch_size * rows
    texts, truncated = set(annotated), sum(tokens > limit for tokens in document_tokens)
    work = WorkEstimate(len(corpus), len(pairs), sum(pair.text not in texts for pair in pairs), truncated)
    work = work._replace(seconds=by_level[level], bytes=memory + FIXED_BYTES)
    return work._replace(efforts=tuple((effort, by_level[what["learn"]]) for effort, what in EFFORTS.items())) if first else work


def _tokens_per_second(method: PromptDSI, texts: list[str]) -> float:
    """The encoder's speed on these texts, the first pass not counted."""
    ids = method.tokenizer_.encode(texts or ["how fast"], max_tokens=method.encoding.max_tokens).ids
    seconds = 0.0
    with torch.no_grad():
        for _ in range(2):
            started = time.perf_counter()
            encode_batches(method.model_.unprompted, ids, method.tokenizer_, method.model_.device)
            seconds = time.perf_counter() - started
    return sum(len(text) for text in ids) / max(seconds, 1e-9)


def measure_training(method: PromptDSI, corpus: Corpus, pairs: Sequence[TrainingPair], report: Report) -> Report:
    """The report with dev Hits@10, and the documents that none of their training queries retrieves in the first ten."""
    rng, queries = random.Random(method.seed), load_queries(corpus, "dev")
    dev = rank_queries(method, rng.sample(queries, min(REPORTED, len(queries))))
    hits = float(values("Hits@10", dev.query_ranks).mean()) if dev.query_ranks else None
    report = replace(report, dev_hits10=hits, dev_queries=len(dev.query_ranks), truncated=method.truncated_documents_)
    if report.fast:
        return report
    by_document: dict[str, list[str]] = {}
    for pair in pairs:
        by_document.setdefault(pair.docid, []).append(pair.text)
    sample = {docid: by_document[docid] for docid in rng.sample(list(by_document), min(REPORTED, len(by_document)))}
    truncated = sum(method.tokenizer_.encode([pair.text for pair in pairs], max_tokens=method.encoding.max_tokens).truncated)
    report = replace(report, queries=len(pairs), truncated_queries=truncated, unfindable=_unfindable(method, sample))
    return replace(report, examined=len(sample), unexamined=len(by_document) - len(sample))


def _unfindable(method: PromptDSI, queries: Mapping[str, Sequence[str]]) -> list[str]:
    """The documents that none of their queries retrieves in the first ten."""
    missing = list(queries)
    for turn in range(max(map(len, queries.values()), default=0)):  # nearly all are retrieved in the first turn
        pending = [docid for docid in missing if turn < len(queries[docid])]
        results = method.search([queries[docid][turn] for docid in pending], k=10)
        retrieved = {docid for docid, result in zip(pending, results, strict=True) if docid in result.docids}
        missing = [docid for docid in missing if docid not in retrieved]
    return missing


def measure_drift(store: Store, parent: Manifest, after: PromptDSI, *, device: str, without: str | None = None) -> Drift | None:
    """Hits@10 on the stored probe queries, of all corpora but one, before and after; None where there are none."""
    probes = []
    for entry in parent.corpora:
        if entry.probes and entry.name != without:
            store.blobs.check(entry.probes, parent.sizes[entry.probes])
            for number, probe in enumerate(store.blobs.list(entry.probes, "probes")):
                probes.append(EvalQuery(f"{entry.name} {number}", probe["text"], dict.fromkeys(probe["docids"], 1.0)))
    if not probes:
        return None
    before = load_method(store, parent, device=device)
    tables = [method.model_.rows for method in (before, after)]
    live = [{docid for docid, row in rows.row_of.items() if row not in rows.deleted} for rows in tables]
    shared = live[0] & live[1]
    queries = [query for query in probes if not shared.isdisjoint(query.relevant)]
    if not queries:
        return None
    results = [rank_queries(method, queries, in_index=shared.__contains__) for method in (before, after)]
    hits = [float(values("Hits@10", result.query_ranks).mean()) for result in results]
    return Drift(hits[0], hits[1], len(queries), fall=hits[0] - hits[1])
