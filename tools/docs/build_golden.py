"""Make a golden index: what this release writes, kept for the tests of all later ones. Never rewrite one that was released.

python -m tools.docs.build_golden format-1
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))


def main() -> None:
    import small

    from promptdsi import Corpus, Document
    from promptdsi.index import merge_corpora

    target = ROOT.resolve() / "tests" / "index" / "golden" / sys.argv[1]
    if target.exists():
        sys.exit(f"{target} exists; a golden index is never rewritten")
    corpora = small.stream()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        backbone = small.backbone(Path("tiny-backbone"), corpora)  # the manifest keeps the path as it was given
        options = {"prompts": "s++", "prompt_options": {"prompt_length": 4}, "keep_probes": 4, "keep_queries": True}
        index = small.create(target / "index", corpora[0], backbone, **options)
    index.add(corpora[1], keep_queries=True)
    index.add(corpora[2], fast=True)
    index.delete(corpora[0].documents[0].docid)
    index.purge(corpora[0].documents[1].docid)
    index.rollback(4)
    index.evaluate(corpora[1], record=True)
    merge_corpora.FAN = 2
    for name in ("looms", "dyes"):  # merged: one corpus with two files of documents
        index.add(Corpus([Document(name, f"A short note on {name} and water.")], name=name))
    index.tag("merged")
    searches = {query: [hit.to_dict() for hit in index.search(query, k=8)] for query in small.QUERIES}
    expected = {"searches": searches, "kinds": [manifest.kind for manifest in index.log()]}
    (target / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", "utf-8")
    Corpus(corpora[3].documents).write(target / "more.jsonl", format="jsonl")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
