"""How long it takes to open an index and answer the first query, against loading the encoder alone.

    python -m tools.bench.opening          # writes docs/results/bench-opening.{json,md}

Each time is taken in a process of its own, imports apart; the file cache is warm for both. "Whole command" is `promptdsi search` from
the shell, imports included; beside it stands how long it takes only to import what people would use instead.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tools import evidence

ROUNDS = 5
ENCODER = """
import sys, time
from promptdsi.index.index import Index
from promptdsi.model.backbone import load_backbone
started = time.perf_counter()
backbone = load_backbone("minilm", offline=True)
print(time.perf_counter() - started)
"""
OPENING = """
import json, sys, time
from promptdsi.index.index import Index
started = time.perf_counter()
index = Index.open(sys.argv[1], device="cpu", check=sys.argv[2] == "True")
opened = time.perf_counter() - started
index.search("how hot should water for tea be", k=10)
first = time.perf_counter() - started
index.search("how do bats find their way in the dark", k=10)
print(json.dumps([opened, first, time.perf_counter() - started - first]))
"""


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for documents in (1_000, 10_000, 100_000):
            place = Path(folder) / str(documents)
            build(place, documents)
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            loading, checked, unchecked, commands = [], [], [], []
            for _ in range(ROUNDS):  # in turn, so that a busy moment of the machine meets all of them
                loading.append(float(run(ENCODER)))
                checked.append(json.loads(run(OPENING, str(place), "True")))
                unchecked.append(json.loads(run(OPENING, str(place), "False")))
                commands.append(timed([sys.executable, "-m", "promptdsi", "search", str(place), "how hot should water for tea be"]))
            encoder = statistics.median(loading)
            middle = [statistics.median(times) for times in zip(*checked, strict=True)]
            quick = [statistics.median(times) for times in zip(*unchecked, strict=True)]
            rows.append(
                {
                    "documents": documents,
                    "MB on disk": round(size / 1e6),
                    "load the encoder, s": round(encoder, 3),
                    "open, s": round(middle[0], 3),
                    "open and first answer, s": round(middle[1], 3),
                    "the same, × encoder": round(middle[1] / encoder, 2),
                    "unchecked, × encoder": round(quick[1] / encoder, 2),
                    "second answer, ms": round(1000 * middle[2], 1),
                    "whole command, s": round(statistics.median(commands), 2),
                }
            )
    imports = [timed([sys.executable, "-c", "import sentence_transformers, faiss"]) for _ in range(ROUNDS)]
    facts = {"seconds to import sentence-transformers and FAISS": round(statistics.median(imports), 2)}
    evidence.write("bench-opening", "Opening an index", "make bench", rows, rounds=ROUNDS, **facts)


def timed(command: list[str]) -> float:
    """Seconds a command takes."""
    started = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - started


def build(place: Path, documents: int) -> None:
    """A real index of two documents with a corpus of synthetic rows behind it: opening does not care what rows mean."""
    import numpy as np

    from promptdsi import Corpus, Document, Index
    from promptdsi.corpus.corpus import whole_text
    from promptdsi.engine.postings import Postings, WordStatistics
    from promptdsi.index.blobs import Ids
    from promptdsi.index.entry import Entry

    first = Corpus([Document("tea", "Tea is brewed with water."), Document("bats", "Bats hear their way.")])
    store = Index.create(place, first, effort="quick", offline=True, device="cpu").store
    corpus = [Document(f"synthetic-{number}", f"Some text of document {number}. " * 12, f"Title {number}") for number in range(documents)]
    vectors = np.random.default_rng(0).standard_normal((documents, 384), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    postings = Postings.build(whole_text(document) for document in corpus)
    entry = Entry(
        name="synthetic",
        since=2,
        count=documents,
        rows=store.blobs.put_rows(vectors, since=2),
        ids=store.blobs.put_json(Ids.of(corpus, since=2)._asdict()),
        words=store.blobs.put_words(postings, since=2),
        documents=store.blobs.put_documents(enumerate(corpus), since=2),
    )
    manifest = store.manifest()
    measured = store.blobs.put_statistics(WordStatistics.of(postings))
    store.commit(replace(manifest, number=2, parent=1, kind="add", corpora=(*manifest.corpora, entry), statistics=measured))


def run(program: str, *words: str) -> str:
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
