"""Build the embedded demo corpus (promptdsi/corpus/demo) from its sources (demo-corpus/*.jsonl).

    python -m tools.docs.build_demo            write it
    python -m tools.docs.build_demo --check    fail if the embedded files differ from the sources

A source file is a subject; each line has id, title, text and its queries: four to train, one for dev, one for test.
Fifteen subjects are in D0 and send four documents each to D1, D2 and D4; textiles arrive all at once, as D3.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

from promptdsi.corpus import Corpus, Document, Judgement, Query
from promptdsi.corpus.splitting import seeded_order

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "demo-corpus"
TARGET = ROOT / "promptdsi" / "corpus" / "demo"
NEW_SUBJECT = "textiles"
LATE_PER_SUBJECT = 4
LATE = ("d1", "d2", "d4")


def load() -> Corpus:
    """The whole demo corpus, its documents in order of arrival."""
    documents: list[Document] = []
    queries: list[Query] = []
    qrels: dict[str, list[Judgement]] = {"train": [], "dev": [], "test": []}
    turn = 0
    for file in sorted(SOURCES.glob("*.jsonl")):
        entries = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        arrives = dict.fromkeys((entry["id"] for entry in entries), "d0")
        if file.stem == NEW_SUBJECT:
            arrives = dict.fromkeys(arrives, "d3")
        else:
            for docid in seeded_order(list(arrives), 0, "demo")[:LATE_PER_SUBJECT]:
                arrives[docid] = LATE[turn % len(LATE)]
                turn += 1
        for entry in entries:
            fields = {"subject": file.stem, "arrives": arrives[entry["id"]]}
            documents.append(Document(entry["id"], entry["text"], entry["title"], fields))
            texts = [*(("train", text) for text in entry["train"]), ("dev", entry["dev"]), ("test", entry["test"])]
            for number, (split, text) in enumerate(texts, 1):
                query = Query(f"{entry['id']}-q{number}", text)
                queries.append(query)
                qrels[split].append(Judgement(query.queryid, entry["id"]))
    documents.sort(key=lambda document: (document.metadata["arrives"], document.docid))
    return Corpus(documents, queries, qrels, name="demo")


def packed_files(corpus: Corpus) -> dict[str, bytes]:
    """The embedded files by name; gzip without a time stamp, so that equal sources give equal bytes."""
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(folder)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {f"{path.relative_to(folder).as_posix()}.gz": gzip.compress(path.read_bytes(), 9, mtime=0) for path in files}


def main() -> int:
    files = packed_files(load())
    if "--check" in sys.argv[1:]:
        stale = [
            name for name, content in files.items() if not (TARGET / name).is_file() or _text(TARGET / name) != gzip.decompress(content)
        ]
        print("stale: " + ", ".join(stale) + "; run python -m tools.docs.build_demo" if stale else "the demo corpus is up to date")
        return 1 if stale else 0
    for name, content in files.items():
        (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / name).write_bytes(content)
    return 0


def _text(path: Path) -> bytes:
    # Compressed bytes may differ between versions of zlib; what counts is what they hold.
    return gzip.decompress(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
