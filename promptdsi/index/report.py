"""What create, add and tune say: before, how much work there is; afterwards, what was learned."""

from __future__ import annotations

import time

import torch

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import whole_text
from promptdsi.index.results import WorkEstimate
from promptdsi.methods.promptdsi import PromptDSI

CHARACTERS_PER_TOKEN = 4.5
BACKWARD = 3.2  # a training step costs this many forward passes


def estimate(method: PromptDSI, corpus: Corpus, *, first: bool, train: bool) -> WorkEstimate:
    """Documents, queries, and about how long and how much memory: from the speed of a few texts, read now."""
    asked = method.training_pairs(corpus, new=not first) if train else []
    given = {pair.query.text for pair in corpus.pairs("train")}
    limit = method.encoding.document_tokens * method.encoding.document_windows
    document_tokens = [len(whole_text(document)) / CHARACTERS_PER_TOKEN for document in corpus.documents]
    query_tokens = sum(min(2 + len(one.text) / CHARACTERS_PER_TOKEN, method.encoding.max_tokens) for one in asked)
    speed = _tokens_per_second(method, [one.text for one in asked[:32]] or [document.text for document in corpus.documents[:8]])
    forward = sum(min(tokens, limit) for tokens in document_tokens) / speed
    each = query_tokens / speed
    width, rows = method.model_.rows.width, len(method.model_.rows) + len(corpus)
    seconds, held = forward, 4 * sum(weight.numel() for weight in method.model_.encoder.parameters())
    if first:
        seconds += each * BACKWARD * method.fit_options.epochs
        held = 4 * held + 16 * rows * width + 4 * 2 * method.fit_options.batch_size * rows
    elif train:
        epochs, batch_size = method.add_options.epochs, method.add_options.batch_size
        steps = epochs * len(asked) / batch_size
        products = 6 * width * batch_size * len(corpus) * steps / 5e10
        seconds += each + products if method.prompts == "none" else each * BACKWARD * epochs + products
        held += 4 * rows * width + 4 * len(asked) * width + 4 * 2 * batch_size * rows
    cut = sum(tokens > limit for tokens in document_tokens)
    return WorkEstimate(len(corpus), len(asked), sum(one.text not in given for one in asked), cut, seconds, held + 600_000_000)


def _tokens_per_second(method: PromptDSI, texts: list[str]) -> float:
    """The encoder's speed on these texts, the first time not counted."""
    ids = method.tokenizer_.encode(texts or ["how fast"], max_tokens=method.encoding.max_tokens).ids
    tokens = method.tokenizer_.pad(ids, method.model_.encoder.word.weight.device)
    seconds = 0.0
    with torch.no_grad():
        for _ in range(2):
            started = time.perf_counter()
            method.model_.unprompted(tokens)
            seconds = time.perf_counter() - started
    return sum(len(one) for one in ids) / max(seconds, 1e-9)
