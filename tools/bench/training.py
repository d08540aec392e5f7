"""Measure training steps against the same step written plainly with Hugging Face, and against what the machine can do.

    python -m tools.bench.training [ROWS]      # writes docs/results/bench-training.{json,md}

Two baselines: the plain continual step, and Naive-PromptDSI, the same with a second pass for the selection. Our rate leaves out the
frozen lower layers, which run once per corpus (the plain steps run them each epoch); the table says what that pass costs. Speed:
rounds in turn in one process, medians, ratios within a round. "Useful" counts the arithmetic a step cannot do without, padding left
out, against products of the same shapes in the same round. Memory: each step in its own process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from promptdsi.corpus import Corpus
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.backbone import backbone_folder, load_backbone, read_tokenizer
from promptdsi.model.tokenizer import Tokenizer
from promptdsi.training.encoding import lower_states
from promptdsi.training.examples import Examples, TrainingPair, tokenize_pairs, training_pairs_of
from promptdsi.training.objectives import cross_entropy
from promptdsi.training.stages import learn_rows
from promptdsi.training.training import bucketed
from tools import evidence
from tools.bench.plain_step import PROMPTED_LAYER, PlainStep

BATCH, NEW, ROUNDS, BATCHES = 128, 352, 5, 6
OURS = ("l2p", "s++", "coda", "topic")
PLAIN = ("plain Hugging Face", "Naive-PromptDSI")
D0 = "D0, encoder and rows"
SIZES = (1_000, 10_000, 100_000)
ROWS_ONLY, ROWS_ONLY_QUERIES = 60, 480
MANY_ROWS = 1_000_000  # whose memory is looked at


def chosen(corpus: Corpus) -> list[TrainingPair]:
    """The queries of one round: the same for every step, so that rounds differ by noise alone."""
    pairs = training_pairs_of(corpus, pseudo=5, seed=0)
    return [pairs[number] for number in np.random.default_rng(0).permutation(len(pairs))[: BATCH * BATCHES]]


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
        self.examples: Examples = tokenize_pairs(chosen(corpus), model.rows, self.tokenizer, max_tokens=32)
        started = time.perf_counter()
        self.lower = lower_states(model, self.examples.ids, self.tokenizer)
        self.once = time.perf_counter() - started
        model.strategy.prepare(self.lower.query, torch.arange(len(self.lower.query)) % 20 if model.strategy.wants_topics else None)
        model.strategy.begin_corpus(self.lower.query)
        learning = [p for p in model.parameters() if p.requires_grad]
        self.model, self.optimizer = model.train(), torch.optim.AdamW(learning, lr=1e-4)
        self.batches = bucketed(self.examples.lengths, BATCH, seed=0, epoch=0)

    def step(self, number: int) -> int:
        batch = self.batches[number % len(self.batches)]
        tokens = self.tokenizer.pad([self.examples.ids[n] for n in batch])
        encoded = self.model(tokens, entering=self.lower.batch(batch.tolist(), tokens), query=self.lower.query[torch.from_numpy(batch)])
        loss = (
            cross_entropy(encoded.vectors, self.model.rows, self.examples.targets[torch.from_numpy(batch)]).mean() + encoded.selection.loss
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
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


class D0Step:
    """Our step of learning D0: every weight of the encoder, and every row."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(0)
        method = PromptDSI(prompts="none", device="cpu", offline=True)
        method.start(load_backbone("minilm", offline=True))
        self.model, self.tokenizer = method.model_.train(), method.tokenizer_
        corpus = build_stream("demo", Request(), new=0).corpora[0]
        docids = [f"old{n}" for n in range(rows - NEW)] + [document.docid for document in corpus.documents]
        self.model.rows.grow(docids, 0.05 * torch.randn(rows, 384))
        self.examples: Examples = tokenize_pairs(chosen(corpus), self.model.rows, self.tokenizer, max_tokens=32)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-4)
        self.batches = bucketed(self.examples.lengths, BATCH, seed=0, epoch=0)

    def step(self, number: int) -> int:
        batch = self.batches[number % len(self.batches)]
        vectors = self.model.unprompted(self.tokenizer.pad([self.examples.ids[n] for n in batch]))
        loss = cross_entropy(vectors, self.model.rows, self.examples.targets[torch.from_numpy(batch)]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return len(batch)


def make(name: str, rows: int, examples: Examples | None = None) -> Any:
    if name in OURS:
        return OurStep(name, rows)
    if name == D0:
        return D0Step(rows)
    return Plain(name == PLAIN[1], rows, examples or plain_examples(rows))


def plain_examples(rows: int) -> Examples:
    """The same queries without our model, so that the plain step's memory is its own."""
    corpus = build_stream("demo", Request(), new=0).corpora[0]
    places = {document.docid: rows - NEW + number for number, document in enumerate(corpus.documents)}
    pairs = chosen(corpus)
    tokenizer = Tokenizer(read_tokenizer(backbone_folder("minilm")), 0)
    ids = tokenizer.encode([pair.text for pair in pairs], max_tokens=32).ids
    return Examples(ids, torch.tensor([places[pair.docid] for pair in pairs]))


def rows_only(rows: int) -> float:
    """Seconds to train 60 new rows on 480 queries beside so many old rows, as `best` does; encoding the queries is counted too."""
    method = PromptDSI.from_params(PRESETS["rows"] | {"device": "cpu", "offline": True})
    method.start(load_backbone("minilm", offline=True))
    model = method.model_
    corpus = build_stream("demo", Request(), new=0).corpora[0]
    documents = corpus.documents[:ROWS_ONLY]
    model.rows.grow([f"old{n}" for n in range(rows)], 0.05 * torch.randn(rows, 384))
    model.rows.freeze()
    model.rows.grow([document.docid for document in documents], 0.05 * torch.randn(len(documents), 384))
    docids = {document.docid for document in documents}
    pairs = [pair for pair in training_pairs_of(corpus, pseudo=8, seed=0) if pair.docid in docids][:ROWS_ONLY_QUERIES]
    examples = tokenize_pairs(pairs, model.rows, method.tokenizer_, max_tokens=32)
    started = time.perf_counter()
    learn_rows(model, examples, method.tokenizer_, method.add_options, method.rows)
    return time.perf_counter() - started


def useful(name: str, lengths: Any, rows: int) -> float:
    """Multiplications and additions that one query of a step needs, on average: METHOD's count, the last layer for one token."""
    width, layers, first = 384, 6, PROMPTED_LAYER
    tokens = np.asarray(lengths, np.float64)
    layer = 24 * tokens * width**2 + 4 * tokens**2 * width
    last = 4 * tokens * width**2 + 20 * width**2 + 4 * tokens * width
    if name == D0:
        return float((3 * ((layers - 1) * layer + last)).mean()) + 6 * width * rows
    forward = (layers - first) * layer + last
    backward = (layers - first - 1) * (layer + 4 * tokens**2 * width) + last + 18 * tokens * width**2
    return float((forward + backward).mean()) + 4 * width * rows + 2 * width * NEW


def peak(tokens: int) -> float:
    """Operations per second of the products a layer makes, of as many tokens as a batch has."""
    shapes = ((384, 1152), (384, 384), (384, 1536), (1536, 384))
    pairs = [(torch.randn(tokens, inner), torch.randn(inner, outer)) for inner, outer in shapes]
    done = 2 * tokens * sum(inner * outer for inner, outer in shapes)
    best = 0.0
    for _ in range(20):
        started = time.perf_counter()
        for left, right in pairs:
            left @ right
        best = max(best, done / (time.perf_counter() - started))
    return best


def growth() -> dict[str, dict[str, float]]:
    """Queries per second of some steps as rows grow; the steps take turns."""
    medians: dict[str, dict[str, float]] = {}
    for rows in SIZES:
        ours = OurStep("s++", rows)
        steps: dict[str, Any] = {name: make(name, rows, ours.examples) for name in PLAIN} | {"s++": ours}
        rates: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            step.step(0)
        for _ in range(3):
            for name, step in steps.items():
                started = time.perf_counter()
                queries = sum(step.step(number) for number in range(BATCHES))
                rates[name].append(queries / (time.perf_counter() - started))
        medians[f"{rows:,} rows"] = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return medians


def memory_of(name: str, rows: int) -> float:
    """MiB a step needs at most, in a process of its own."""
    words = [sys.executable, "-m", "tools.bench.training", "--memory", name, str(rows)]
    return float(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} … {max(values):.2f}"


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    ours = {name: make(name, rows) for name in (*OURS, D0)}
    examples = ours["s++"].examples
    steps = {name: make(name, rows, examples) for name in PLAIN} | ours
    rates: dict[str, list[float]] = {name: [] for name in steps}
    peaks: list[float] = []
    for step in steps.values():
        step.step(0)
    for round_number in range(ROUNDS):
        peaks.append(peak(int(BATCH * np.mean(examples.lengths))))
        for name, step in steps.items():
            started = time.perf_counter()
            queries = sum(step.step(round_number * BATCHES + number) for number in range(BATCHES))
            rates[name].append(queries / (time.perf_counter() - started))
    table = []
    for name, speeds in rates.items():
        plain, naive = (
            [speed / base for speed, base in zip(speeds, rates[baseline], strict=True)] if name != D0 else [] for baseline in PLAIN
        )
        work = useful(name, examples.lengths, rows)
        shares = [100 * speed * work / top for speed, top in zip(speeds, peaks, strict=True)]
        table.append(
            {
                "step": name,
                "queries per second": round(statistics.median(speeds), 1),
                "÷ plain": round(statistics.median(plain), 2) if plain else "",
                "÷ plain, from … to": spread(plain) if plain else "",
                "÷ Naive-PromptDSI": round(statistics.median(naive), 2) if naive else "",
                "÷ naive, from … to": spread(naive) if naive else "",
                "useful share of the peak, %": round(statistics.median(shares), 1) if name not in PLAIN else "",
                "peak memory, MiB": round(memory_of(name, rows)),
            }
        )
    facts: dict[str, Any] = {
        "documents": rows,
        "batch": BATCH,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    facts["peak of products of these shapes, GFLOP/s"] = round(statistics.median(peaks) / 1e9, 1)
    facts["peak, from … to"] = f"{min(peaks) / 1e9:.0f} … {max(peaks) / 1e9:.0f}"
    facts["seconds for the frozen layers, once per corpus"] = round(statistics.median(ours[name].once for name in OURS), 1)
    facts["queries in a round"] = len(examples.ids)
    seconds = [rows_only(rows) for _ in range(ROUNDS)]
    facts["rows only, 60 documents and 480 queries, seconds with encoding"] = round(statistics.median(seconds), 2)
    facts["rows only, from … to"] = spread(seconds)
    facts[f"s++ at {MANY_ROWS:,} rows, MiB"] = round(memory_of("s++", MANY_ROWS))
    facts["queries per second as rows grow"] = growth()
    evidence.write("bench-training", "Training steps, MiniLM", "make bench", table, **facts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        step = make(sys.argv[2], int(sys.argv[3]))
        for number in range(BATCHES):  # batches differ in length: the longest needs most
            step.step(number)
        print(json.dumps(evidence.peak_mib()))
    else:
        main()
