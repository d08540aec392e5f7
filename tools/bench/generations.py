"""What a thousand generations of one document each cost, against the same documents in one generation.

    python -m tools.bench.generations          # writes docs/results/bench-generations.{json,md}

Generations are made as `add` and as `sync` make them: both merge small corpora by themselves, `add` without their documents, which it
does not open. Those of `add` are then merged by `prune --merge`. A tenth of the generations delete a document. Rows are synthetic:
opening and committing do not care what they mean. "Adding" is `promptdsi add --fast` of one document from Python, its report included;
"opening" is `Index.open` in a process of its own, imports apart, with every checksum verified. The file cache is warm.
"""

from __future__ import annotations

import bisect
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools import evidence
from tools.bench.opening import OPENING, run

if TYPE_CHECKING:
    from promptdsi import Document
    from promptdsi.index.store import Store

GENERATIONS, ROUNDS, ADDS = 1_000, 7, 5
DELETION = 10  # one generation in so many deletes a document


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place_of = {name: Path(folder) / name for name in ("one", "by sync", "by add")}
        build(place_of["one"], 2)
        build(place_of["by sync"], GENERATIONS)
        commits = build(place_of["by add"], GENERATIONS, documents=False)
        many = f"{GENERATIONS:,} generations"
        rows = {"one generation": {"index": "one generation"} | measure(place_of["one"])}
        rows |= {f"{many}, {kind}": {"index": f"{many}, {kind}"} | measure(place_of[kind]) for kind in ("by sync", "by add")}
        seconds = {"first hundred commits, ms each": commits[0], "last hundred commits, ms each": commits[1]}
        seconds |= maintain(place_of["by add"], Path(folder) / "backup")
        merged = f"{many}, by add, after prune --merge"
        rows[merged] = {"index": merged} | measure(place_of["by add"])
        single = rows["one generation"]["open, s"]
        for row in rows.values():
            row["open, × one generation"] = round(row["open, s"] / single, 2)
        evidence.write("bench-generations", "Many generations", "make bench", list(rows.values()), rounds=ROUNDS, **seconds)


def measure(place: Path) -> dict[str, Any]:
    """Sizes, and how long opening, reading the log, and adding and deleting one document take."""
    opened = [json.loads(run(OPENING, str(place), "True")) for _ in range(ROUNDS)]
    opening, first, _ = (statistics.median(times) for times in zip(*opened, strict=True))
    size = sum(path.stat().st_size for path in (place / "generations").iterdir())
    from promptdsi import Corpus, Document, Index

    index = Index.open(place, device="cpu")
    sizes = {"generations": index.generation, "files": sum(1 for _ in place.rglob("*")), "manifests, MB": round(size / 1e6, 2)}
    log = timed(index.log)
    adding, deleting = [], []
    for number in range(ADDS + 1):  # the first is not counted: torch is imported
        document = Document(f"{place.name} {index.generation}", f"A document that was added as number {number}.")
        adding.append(timed(partial(index.add, Corpus([document], name=document.docid), fast=True)))
        deleting.append(timed(partial(index.delete, document.docid)))
    times = {"open, s": opening, "open and first answer, s": first, "log, s": log}
    times |= {"add, s": statistics.median(adding[1:]), "delete, s": statistics.median(deleting[1:])}
    return sizes | {name: round(value, 3) for name, value in times.items()}


def maintain(place: Path, folder: Path) -> dict[str, Any]:
    """Seconds of each command that looks after an index of many generations; at the end its small corpora are merged."""
    from promptdsi import Index

    index = Index.open(place, device="cpu")
    names = ("verify", "backup", "backup again", "prune --merge", "prune --keep 10")
    actions = (
        index.verify,
        lambda: index.backup(folder),
        lambda: index.backup(folder),
        lambda: index.prune(merge=True),
        lambda: index.prune(keep=10),
    )
    return {f"{name}, s": round(timed(action), 2) for name, action in zip(names, actions, strict=True)}


def timed(action: Any) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def build(place: Path, generations: int, *, documents: bool = True) -> tuple[float, float]:
    """A real index of two documents and synthetic ones behind it: one for each generation, or all in the second.

    Without `documents` theirs are not merged. The milliseconds of a commit among the first and the last hundred; its four blobs are
    written as well.
    """
    import numpy as np

    from promptdsi import Corpus, Document, Index
    from promptdsi.index.merge_corpora import merge_gathered

    first = Corpus([Document("tea", "Tea is brewed with water."), Document("bats", "Bats hear their way.")])
    store = Index.create(place, first, effort="quick", offline=True, device="cpu").store
    numbers = [number for number in range(2, GENERATIONS + 1) if number % DELETION]
    texts = [Document(f"synthetic-{number}", f"Some text of document {number}. " * 12, f"Title {number}") for number in numbers]
    vectors = np.random.default_rng(0).standard_normal((len(texts), 384), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    if generations == 2:
        commit(store, texts, vectors)
        return 0.0, 0.0
    seconds = []
    for number in range(2, generations + 1):
        place_of = bisect.bisect_left(numbers, number)
        several = slice(place_of, place_of + 1) if number % DELETION else slice(0)
        seconds.append(timed(partial(commit, store, texts[several], vectors[several])))
        merge_gathered(store, documents=documents)
    return round(1000 * statistics.mean(seconds[:100]), 1), round(1000 * statistics.mean(seconds[-100:]), 1)


def commit(store: Store, documents: Sequence[Document], rows: Any) -> None:
    """A generation with these documents; without any, one that deletes the last."""
    from promptdsi.corpus.corpus import whole_text
    from promptdsi.engine.postings import Postings
    from promptdsi.index.blobs import Ids
    from promptdsi.index.entry import Entry

    parent = store.manifest()
    since = parent.number + 1
    if not documents:
        total = sum(entry.count for entry in parent.corpora)
        store.commit(parent.next("delete", tombstones=(*parent.tombstones, total - 1), event={"documents": 1}))
        return
    entry = Entry(
        name=f"synthetic {since}",
        since=since,
        count=len(documents),
        rows=store.blobs.put_rows(rows, since=since),
        ids=store.blobs.put_json(Ids.of(documents, since=since)._asdict()),
        words=store.blobs.put_words(Postings.build(whole_text(document) for document in documents), since=since),
        documents=store.blobs.put_documents(enumerate(documents), since=since),
    )
    event = {"corpus": entry.name, "added": len(documents), "updated": 0, "queries": 0, "fast": False, "drift": None, "seconds": 0.1}
    store.commit(parent.next("add", corpora=(*parent.corpora, entry), event=event))


if __name__ == "__main__":
    main()
