"""Measure the memory that rows and their optimizer state take while D0 is trained by one process and by two.

    python -m tools.bench.sharded_training      # writes docs/results/bench-sharded-training.{json,md}

Synthetic documents and queries and a tiny random encoder, so that rows dominate. Measured in each process: the peak of resident memory
(VmHWM, which the kernel counts) above what the process had when rows began, through their beginning from vectors of documents, training,
checkpoints, and the writing of the rows blob; less the same with few rows, which is what libraries and the encoder take. Token ids are
made before; texts and docids, which the first process holds, are left out. Figures are medians of some
rounds, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptdsi.index.blobs import Blobs
from promptdsi.model.config import EncoderConfig
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Encoder
from promptdsi.model.prompts import make_strategy
from promptdsi.model.tokenizer import TokenIds, Tokenizer
from promptdsi.training import checkpoint
from promptdsi.training.distributed import join, leading
from promptdsi.training.encoding import document_vectors
from promptdsi.training.examples import Examples
from promptdsi.training.sharded import FirstRows
from promptdsi.training.shared_stages import help_training, learn_together
from promptdsi.training.stages import RowOptions, learn_everything, learn_rows
from promptdsi.training.training import Training, TrainingLog
from tools import evidence

WIDTH, VOCABULARY, TOKENS, BATCH, FEW = 64, 1000, 6, 16, 1000
ROUNDS = 3
LIMITS = RowOptions(fix_row_norm=True, anchor_weight=20.0)  # as the recommended preset
OPTIONS = Training(epochs=1, batch_size=BATCH, lr=1e-3, row_lr=1e-3, row_decay=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--worker", nargs=2, metavar=("LEARN", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work(given.worker[0], Path(given.worker[1]), given.rows, given.queries)
    rows: list[dict[str, Any]] = []
    for learn in ("everything", "rows"):
        rounds = [{size: above_few(learn, size, given.rows, given.queries) for size in (1, 2)} for _ in range(ROUNDS)]
        alone = statistics.median(peaks[1][0]["mib"] for peaks in rounds)
        for size, rank in ((1, 0), (2, 0), (2, 1)):
            mib = sorted(peaks[size][rank]["mib"] for peaks in rounds)
            first = rounds[0][size][0]
            row = {"learn": learn, "processes": size, "process": rank, "peak MiB": round(statistics.median(mib), 1)}
            row |= {"from … to": f"{mib[0]:.0f} … {mib[-1]:.0f}", "÷ one process": round(statistics.median(mib) / alone, 3)}
            rows.append(row | {"checkpoints": first["checkpoints"], "last loss": f"{first['loss']:.6f}"})
    facts: dict[str, Any] = {"documents": given.rows, "width": WIDTH, "queries": given.queries, "batch": BATCH, "rounds": ROUNDS}
    facts["largest ratio (must be at most 0.6)"] = max(row["÷ one process"] for row in rows if row["processes"] == 2)
    title = "Memory of rows and optimizer state: one process and two"
    evidence.write("bench-sharded-training", title, "python -m tools.bench.sharded_training", rows, **facts)


def above_few(learn: str, size: int, rows: int, queries: int) -> list[dict[str, Any]]:
    """Train with some processes; of each the peak of its memory above that of the same training with few rows."""
    few, many = (measure(learn, size, count, queries) for count in (FEW, rows))
    return [peak | {"mib": peak["mib"] - base["mib"]} for base, peak in zip(few, many, strict=True)]


def measure(learn: str, size: int, rows: int, queries: int) -> list[dict[str, Any]]:
    """Train with some processes; of each the peak of its memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # On the disk of the results: a folder for temporary files may lie in memory.
    with tempfile.TemporaryDirectory(dir=evidence.RESULTS.parent.parent, prefix=".sharded-training.") as folder:
        words = [sys.executable, "-m", "tools.bench.sharded_training", f"--rows={rows}", f"--queries={queries}", "--worker", learn, folder]
        common = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        common |= {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # freed memory goes back at once
        processes = [subprocess.Popen(words, env=common | {"RANK": str(rank)}, stdout=subprocess.PIPE) for rank in range(size)]
        outcomes = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"training with {size} processes failed")
        return [json.loads(outcome) for outcome in outcomes]


def work(learn: str, folder: Path, rows: int, queries: int) -> None:
    """In each process: train, and print the peak of memory."""
    checkpoint.SECONDS_BETWEEN_CHECKPOINTS = 0.0  # as often as they may
    saved: list[int] = []
    save = checkpoint.Checkpoint.save

    def count_saved(self: checkpoint.Checkpoint, done: int, losses: list[float]) -> None:
        saved.append(done)
        save(self, done, losses)

    checkpoint.Checkpoint.save = count_saved  # type: ignore[method-assign]
    warm_up()
    world = join()
    if world.rank:
        before = begin_measuring()
        help_training()
        return print(json.dumps({"mib": evidence.peak_mib() - before}))
    torch.manual_seed(0)
    config = EncoderConfig(family="bert", width=WIDTH, layers=2, heads=2, feed_forward=64, vocabulary=VOCABULARY, positions=32)
    config = replace(config, dropout=0.0, attention_dropout=0.0)  # processes draw it each for itself
    model = DSI(Encoder(config), make_strategy("none"), pooling="mean", normalize=True, scale=20.0).eval()
    tokenizer = word_tokenizer()
    rng = np.random.default_rng(0)
    documents, texts = (packed(rng.integers(5, VOCABULARY, (count, TOKENS), np.int32)) for count in (rows, queries))
    examples = Examples(texts, torch.from_numpy(rng.permutation(rows)[:queries]))
    model.rows.grow([str(number) for number in range(rows)], torch.zeros(1, 1).expand(rows, WIDTH))  # docids, which are not measured
    before = begin_measuring()
    with leading():
        if world.size > 1:
            first = FirstRows("document", lambda low, high: [[documents[number]] for number in range(low, high)])
            keywords: dict[str, Any] = {"first": first, "begins": "synthetic", "checkpoint": folder / "training"}
            log = learn_together(learn, model, examples, tokenizer, OPTIONS, LIMITS, **keywords)
        else:
            log = train_alone(learn, model, examples, tokenizer, documents, folder / "training")
    Blobs(folder / "blobs").put_rows(model.rows.blocks[0].detach().numpy(), since=1)
    print(json.dumps({"mib": evidence.peak_mib() - before, "checkpoints": len(saved), "loss": log.losses[-1]}))


def train_alone(learn: str, model: DSI, examples: Examples, tokenizer: Tokenizer, documents: TokenIds, folder: Path) -> TrainingLog:
    model.rows.replace_last(document_vectors(model, [[ids] for ids in documents], tokenizer))
    if learn == "everything":
        return learn_everything(model, examples, tokenizer, OPTIONS, checkpoint=folder, begins="synthetic")
    model.encoder.freeze()
    return learn_rows(model, examples, tokenizer, OPTIONS, LIMITS, checkpoint=folder, begins="synthetic")


def begin_measuring() -> float:
    """From now on the kernel's peak is that of what follows; MiB that the process has already, without what it could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return evidence.peak_mib()


def warm_up() -> None:
    """What libraries allocate once, when first used, is no memory of rows."""
    weight = torch.nn.Parameter(torch.rand(64, WIDTH))
    (torch.rand(BATCH, WIDTH) @ weight.T).logsumexp(1).sum().backward()
    torch.optim.AdamW([weight], fused=True).step()


def packed(ids: Any) -> TokenIds:
    return TokenIds(ids.reshape(-1), np.arange(0, ids.size + 1, ids.shape[1], dtype=np.int64))


def word_tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer as Fast
    from tokenizers.models import WordLevel

    return Tokenizer(Fast(WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")).to_str(), 0)


if __name__ == "__main__":
    main()
