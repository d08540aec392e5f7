"""Measure one continual training step of each strategy against the same step written plainly with Hugging Face.

    python tools/bench_training.py [ROWS]

Our rate leaves out the frozen lower layers, which run once per corpus (the plain step runs them each epoch); the table says
what that pass costs. Speed: rounds in turn in one process, medians, as ratios to the plain step. Memory: each in its own process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import report
import torch
from plain_step import PlainStep

from promptdsi.corpus import Corpus
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.learning.batches import bucketed
from promptdsi.learning.encoding import keep_states
from promptdsi.learning.examples import Asked, Examples, asked_of, tokenised
from promptdsi.learning.objectives import cross_entropy
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.model.backbone import backbone_folder, load_backbone, read_tokenizer
from promptdsi.model.tokens import Tokenizer

BATCH, NEW, ROUNDS, BATCHES = 128, 352, 5, 6
OURS = ("l2p", "s++", "coda", "topic")
PLAIN = ("plain Hugging Face", "plain, two passes")


def chosen(corpus: Corpus) -> list[Asked]:
    """The queries of one round: the same for every step, so that rounds differ by noise alone."""
    asked = asked_of(corpus, pseudo=5, seed=0)
    return [asked[number] for number in np.random.default_rng(0).permutation(len(asked))[: BATCH * BATCHES]]


class OurStep:
    """Our continual step with everything it skips: kept lower states, no frozen-row gradients, length buckets."""

    def __init__(self, strategy: str, rows: int) -> None:
        torch.manual_seed(0)
        self.method = PromptDSI(prompts=strategy, device="cpu", offline=True)
        self.method.start(load_backbone("minilm", offline=True))
        model, self.tokenizer = self.method.model_, self.method.tokenizer_
        model.encoder.freeze()
        corpus = build_stream("demo", Request(), new=0).corpora[0]
        model.rows.grow([f"old{n}" for n in range(rows - NEW)], 0.05 * torch.randn(rows - NEW, 384))
        model.rows.grow([document.docid for document in corpus.documents], 0.05 * torch.randn(NEW, 384))
        self.examples: Examples = tokenised(chosen(corpus), model.rows, self.tokenizer, max_tokens=32)
        started = time.perf_counter()
        self.kept = keep_states(model, self.examples.ids, self.tokenizer)
        self.once = time.perf_counter() - started
        model.strategy.prepare(self.kept.query, torch.arange(len(self.kept.query)) % 20 if model.strategy.wants_topics else None)
        model.strategy.begin_corpus(self.kept.query)
        learning = [p for p in model.parameters() if p.requires_grad]
        self.model, self.optimiser = model.train(), torch.optim.AdamW(learning, lr=1e-4)
        self.batches = bucketed(self.examples.lengths, BATCH, seed=0, epoch=0)

    def step(self, number: int) -> int:
        batch = self.batches[number % len(self.batches)]
        tokens = self.tokenizer.pad([self.examples.ids[n] for n in batch])
        encoded = self.model(tokens, entering=self.kept.batch(batch.tolist(), tokens), query=self.kept.query[torch.from_numpy(batch)])
        loss = (
            cross_entropy(encoded.vectors, self.model.rows, self.examples.targets[torch.from_numpy(batch)]).mean() + encoded.selection.loss
        )
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return len(batch)


class Plain:
    """The plain step on the same queries, in random batches."""

    def __init__(self, two_pass: bool, rows: int, examples: Examples) -> None:
        self.step_, self.examples = PlainStep(rows, NEW, two_pass=two_pass), examples
        self.order = np.random.default_rng(0).permutation(len(examples.ids))

    def step(self, number: int) -> int:
        start = number % BATCHES * BATCH
        batch = self.order[start : start + BATCH]
        self.step_.step([self.examples.ids[n] for n in batch], self.examples.targets[torch.from_numpy(batch)])
        return len(batch)


def make(name: str, rows: int, examples: Examples | None = None) -> Any:
    if name in OURS:
        return OurStep(name, rows)
    return Plain(name == PLAIN[1], rows, examples or plain_examples(rows))


def plain_examples(rows: int) -> Examples:
    """The same queries without our model, so that the plain step's memory is its own."""
    corpus = build_stream("demo", Request(), new=0).corpora[0]
    places = {document.docid: rows - NEW + number for number, document in enumerate(corpus.documents)}
    asked = chosen(corpus)
    tokenizer = Tokenizer(read_tokenizer(backbone_folder("minilm")), 0)
    ids = tokenizer.encode([one.text for one in asked], max_tokens=32).ids
    return Examples(ids, torch.tensor([places[one.docid] for one in asked]))


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    ours = {name: make(name, rows) for name in OURS}
    steps = {name: make(name, rows, ours["s++"].examples) for name in PLAIN} | ours
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step.step(0)
    for round_number in range(ROUNDS):
        for name, step in steps.items():
            started = time.perf_counter()
            queries = sum(step.step(round_number * BATCHES + number) for number in range(BATCHES))
            rates[name].append(queries / (time.perf_counter() - started))
    plain = rates[PLAIN[0]]
    table = []
    for name, found in rates.items():
        ratios = [one / base for one, base in zip(found, plain, strict=True)]
        memory = json.loads(
            subprocess.run([sys.executable, __file__, "--memory", name, str(rows)], capture_output=True, text=True, check=True).stdout
        )
        row = {"step": name, "queries per second": statistics.median(found), "ratio to plain": statistics.median(ratios)}
        table.append(row | {"ratio spread": max(ratios) - min(ratios), "peak memory, MiB": round(memory)})
    facts = {"documents": rows, "batch": BATCH, "rounds": ROUNDS, "threads": torch.get_num_threads(), "torch": torch.__version__}
    facts["seconds for the frozen layers, once per corpus"] = round(statistics.median(step.once for step in ours.values()), 1)
    facts["queries in a round"] = len(ours["s++"].examples.ids)
    report.write("bench-training", "One continual training step, MiniLM", "make bench", table, **facts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        step = make(sys.argv[2], int(sys.argv[3]))
        for number in range(3):
            step.step(number)
        print(json.dumps(report.peak_mib()))
    else:
        main()
