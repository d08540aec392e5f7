"""Measure quality beside time, of ours and of what people use instead, on the same paragraphs of squadx.

    python -m tools.bench.rivals --python PYTHON     # writes docs/results/bench-rivals.{json,md}

PYTHON has sentence-transformers with its ONNX backend, FAISS, bm25s and LanceDB (`pip install 'sentence-transformers[onnx]<6' faiss-cpu
bm25s lancedb` in an environment of its own: they need other versions of transformers than we do). Each system has a process of its own,
with the threads it takes by default, and the same 3,000 paragraphs with their titles, no query to learn from; all encode with MiniLM. The
dev queries are put to all in turn, twenty at a time, so that a busy moment of the machine meets all. Ours once more with the train queries,
which no other can learn from.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from promptdsi import Corpus
from promptdsi.corpus.corpus import merge_corpora, whole_text
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.model.backbone import backbone_folder
from tools import evidence
from tools.bench.line_process import LineProcess

DOCUMENTS, AT_ONCE, QUERIES = 3000, 20, 1200
OTHERS = {
    "torch": "sentence-transformers (torch) + FAISS flat",
    "onnx": "sentence-transformers (ONNX) + FAISS flat",
    "onnx int8": "sentence-transformers (ONNX int8) + FAISS flat",
    "bm25s": "bm25s",
    "lancedb": "LanceDB, hybrid",
}
OURS = {"ours": "promptdsi", "ours int8": "promptdsi, int8 engine", "ours taught": "promptdsi, with train queries"}


class Rival(LineProcess):
    """A system in its own process."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self.built = float(self.first["built"])
        self.seconds: list[float] = []
        self.rankings: list[list[str]] = []

    def rank(self, queries: list[str]) -> None:
        for seconds, docids in self.request(queries):
            self.seconds.append(seconds)
            self.rankings.append(docids)


def serve_ours(name: str, folder: Path) -> None:
    """Answer as rival.py does."""
    from promptdsi import Index

    corpus = Corpus.read(folder / "corpus")
    if name != "ours taught":
        corpus = Corpus(corpus.documents, [], {}, name=corpus.name)
    started = time.perf_counter()
    place = folder / name.replace(" ", "-")
    Index.create(place, corpus, device="cpu", offline=True)
    print(json.dumps({"built": time.perf_counter() - started}), flush=True)
    index = Index.open(place, engine="int8" if name == "ours int8" else "onnx")
    index.search("a first query, so that nobody waits for what is set up once")
    for line in sys.stdin:
        answers = []
        for query in json.loads(line):
            began = time.perf_counter()
            hits = index.search(query, k=10)
            answers.append([time.perf_counter() - began, [hit.docid for hit in hits]])
        print(json.dumps(answers), flush=True)


def measure(python: str, folder: Path) -> None:
    stream = build_stream("squadx", Request(), limit=DOCUMENTS, new=5, share=0.06, tune=100)
    corpus = merge_corpora(stream.corpora, "squadx")
    corpus.write(folder / "corpus")
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        for document in corpus.documents:
            file.write(json.dumps({"docid": document.docid, "text": whole_text(document)}) + "\n")
    shutil.copytree(backbone_folder("minilm"), folder / "backbone")
    (folder / "backbone.txt").write_text(str(folder / "backbone"))
    pairs = [(pair.query.text, pair.docid) for pair in corpus.pairs("dev", kinds=("annotated",))][:QUERIES]
    worker = Path(__file__).with_name("rival.py")
    systems: dict[str, Rival] = {}
    for name, label in OTHERS.items():  # one after the other: they are timed while they build
        systems[label] = Rival([python, str(worker), name, str(folder)])
    for name, label in OURS.items():
        systems[label] = Rival([sys.executable, "-m", "tools.bench.rivals", "--answer", name, str(folder)])
    for first in range(0, len(pairs), AT_ONCE):
        for system in systems.values():
            system.rank([text for text, _ in pairs[first : first + AT_ONCE]])
    rows = []
    for label, system in systems.items():
        ranks = [ranking.index(docid) + 1 if docid in ranking else 0 for ranking, (_, docid) in zip(system.rankings, pairs, strict=True)]
        rows.append(
            {
                "system": label,
                "Hits@1": 100 * sum(rank == 1 for rank in ranks) / len(ranks),
                "Hits@10": 100 * sum(rank > 0 for rank in ranks) / len(ranks),
                "one query, p50 ms": 1000 * statistics.median(system.seconds),
                "p95 ms": 1000 * sorted(system.seconds)[int(0.95 * len(system.seconds))],
                "built in s": system.built,
            }
        )
    title = "Quality beside time: ours and what people use instead"
    evidence.write("bench-rivals", title, "python -m tools.bench.rivals", rows, documents=len(corpus), queries=len(pairs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--answer", nargs=2, metavar=("SYSTEM", "FOLDER"))
    options = parser.parse_args()
    if options.answer:
        return serve_ours(options.answer[0], Path(options.answer[1]))
    with tempfile.TemporaryDirectory() as folder:
        measure(options.python, Path(folder))


if __name__ == "__main__":
    main()
