"""Kill shard processes and nodes of a cluster while an index on it is searched, added to, purged and followed; then look at every answer.

    python -m tools.soak.soak_cluster --kills 20        # writes docs/results/soak-cluster.{json,md}

Two Ray nodes on the loopback address, three shards. A thread searches all the time; every answer must be that of one process for the
generation it names, and every write must be there afterwards. A purge changes what the generation before it answers: of that one both are
right, with the erased document and without, but none in between. Recovery is the time from a kill until all shards answer again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
WORK = ("search", "add", "purge", "following")
RECOVERED_WITHIN = 120.0  # seconds

Answer = tuple[tuple[str, float], ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print", action="store_true", help="print the figures instead of writing them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = Soak(Path(folder), random.Random(arguments.seed)).run(arguments.kills)
    if arguments.print:
        print(json.dumps(rows))
        return
    from tools import evidence

    evidence.write("soak-cluster", "Shards and nodes killed under an index on a cluster", "make soak", rows, seed=arguments.seed)


class Soak:
    """An index on two nodes, and the answers that one process gives of each of its generations."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        import sharded
        import small
        from ray_nodes import Nodes

        corpora = small.stream()
        self.path, self.rng, self.nodes = folder / "index", rng, Nodes()
        sharded.build(self.path, corpora, small.backbone(folder / "backbone", corpora))
        self.expected: dict[int, set[Answer]] = {}
        self.records: list[dict[str, Any]] = []
        self.added = 0

    def run(self, kills: int) -> list[dict[str, Any]]:
        try:
            for number in range(kills):  # one kill in three takes a node away; for each loss the kinds of work take turns
                lost, turn = ("node", number // 3) if number % 3 == 2 else ("shard", number - number // 3)
                self.kill(lost, WORK[turn % len(WORK)])
                print(json.dumps(self.records[-1]), file=sys.stderr)
        finally:
            self.nodes.shut_down()
        return self.table()

    def kill(self, lost: str, work: str) -> None:
        """Kill while something is done, wait until everything answers again, and compare all answers that were given meanwhile."""
        from ray_nodes import process_ids

        index = self.open(on=self.nodes.url)
        index.search("tea")
        searcher = Searcher(self.open(on=self.nodes.url))
        self.remember()
        before, victim, times = index.generation, self.rng.choice(process_ids(index)), dict[str, float]()

        def strike() -> None:
            times["kill"] = time.monotonic()
            if lost == "node":
                self.nodes.lose_one()
            else:
                os.kill(victim, 9)

        timer = threading.Timer(self.rng.uniform(0, 0.3), strike)
        timer.start()
        expected = before + self.work(index, work)
        timer.join()
        wait_until(lambda: all(index.opened.shards_ready()))
        index.search("tea")
        times["recovered"] = time.monotonic()
        answers = searcher.end()
        self.remember()
        wrong = sum(answer not in self.expected[generation] for generation, answer in answers)
        lost_generations = int(self.open().generation != expected or bool(self.open().verify().problems))
        seconds = round(times["recovered"] - times["kill"], 2)
        counts = {"answers": len(answers), "no answer": searcher.failures, "wrong": wrong, "lost generations": lost_generations}
        self.records.append({"lost": lost, "during": work, "seconds": seconds, "slowest": round(searcher.slowest, 2)} | counts)
        if lost == "node":
            self.nodes.add_one()

    def open(self, **options: Any) -> Any:
        from promptdsi import Index

        return Index.open(self.path, device="cpu", **options)

    def remember(self, at: int | None = None) -> None:
        """What one process answers now of a generation, by default the newest."""
        index = self.open(at=at)
        self.expected.setdefault(index.generation, set()).add(answer_of(index))

    def work(self, index: Any, kind: str) -> int:
        """Do something with the index: how many generations that makes. What fails while a shard is away is tried again."""
        from promptdsi import Corpus, Document
        from promptdsi.engine.ray_store import ShardsUnavailable

        if kind == "search":
            time.sleep(0.5)
            return 0
        self.added += 1
        new = Corpus(
            [Document(f"new-{self.added}-{number}", f"Boats and tea, number {number}.") for number in range(3)], name=f"n{self.added}"
        )
        if kind == "purge":
            index.add(new, fast=True)
            self.remember()
        before = self.open().generation
        while self.open().generation == before:
            try:
                if kind == "add":
                    index.add(new)
                elif kind == "purge":
                    index.purge([f"new-{self.added}-1"])
                else:
                    self.open().add(new, fast=True)  # another writer: the shards follow
                    index.refresh()
                index.search("tea")
            except ShardsUnavailable:
                continue
        self.remember()
        if kind == "purge":
            self.remember(before)
        return 1 + (kind == "purge")

    def table(self) -> list[dict[str, Any]]:
        """One row for each kind of loss and work."""
        rows = []
        for lost in ("shard", "node"):
            for work in WORK:
                some = [record for record in self.records if (record["lost"], record["during"]) == (lost, work)]
                if some:
                    seconds = sorted(record["seconds"] for record in some)
                    row = {"lost": lost, "during": work, "kills": len(some), "recovery, median s": seconds[len(seconds) // 2]}
                    row |= {"recovery, longest s": seconds[-1], "slowest answer s": max(record["slowest"] for record in some)}
                    rows.append(row | {key: sum(record[key] for record in some) for key in list(some[0])[4:]})
        return rows


class Searcher(threading.Thread):
    """Searches without pause and follows new generations; remembers each answer with its generation."""

    def __init__(self, index: Any) -> None:
        super().__init__(daemon=True)
        self.index, self.ended = index, threading.Event()
        self.answers: list[tuple[int, Answer]] = []
        self.failures, self.slowest = 0, 0.0
        self.start()

    def run(self) -> None:
        from promptdsi import PromptDSIError

        while not self.ended.is_set():
            started = time.monotonic()
            try:
                self.index.refresh()
                generation = self.index.generation
                self.answers.append((generation, answer_of(self.index)))
                self.slowest = max(self.slowest, time.monotonic() - started)
            except PromptDSIError:  # no answer: allowed while something is lost, or a purge erased what a new process would open
                self.failures += 1

    def end(self) -> list[tuple[int, Answer]]:
        self.ended.set()
        self.join()
        return self.answers


def answer_of(index: Any) -> Answer:
    import sharded

    return tuple((hit.docid, hit.score) for hits in index.search(sharded.QUERIES, k=20) for hit in hits)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + RECOVERED_WITHIN
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the shards did not recover in {RECOVERED_WITHIN:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
