"""Eight clients search while the index is written to: no error, and every response is that of one generation.

`make soak` runs it longer (PROMPTDSI_LOAD_SECONDS) and stores the figures (PROMPTDSI_LOAD_FIGURES names a file).
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import served
import small

from promptdsi import Corpus, Index

SECONDS = float(os.environ.get("PROMPTDSI_LOAD_SECONDS", "3"))
CLIENTS = 8
QUERIES = [f"{words} {place}" for place, words in enumerate([*small.QUERIES, "tea", "light and sound", "the sea"] * 2)]


class Client(threading.Thread):
    """Sends one query after another until told to stop, and collects the responses."""

    def __init__(self, url: str, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.url, self.number, self.stop = url, number, stop
        self.answers: list[tuple[int, str, list[tuple[str, float]]]] = []
        self.milliseconds: list[float] = []
        self.problems: list[str] = []

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            turn = self.number
            while not self.stop.is_set():
                turn += 1
                query = QUERIES[turn % len(QUERIES)]
                began = time.perf_counter()
                try:
                    answer = client.post("/api/search", json={"query": query, "k": 40})
                except httpx.TransportError as error:
                    self.problems.append(repr(error))
                    continue
                self.milliseconds.append(1000 * (time.perf_counter() - began))
                if answer.status_code != 200:
                    self.problems.append(answer.text)
                    continue
                response = answer.json()
                hits = [(hit["docid"], hit["score"]) for hit in response["results"][0]["hits"]]
                self.answers.append((response["generation"], query, hits))


def write(path: Path, corpora: list[Corpus]) -> list[int]:
    """Add, delete and undelete, for so many seconds and at least six times; the generations committed."""
    index = Index.open(path, device="cpu")
    generations: list[int] = []
    docid = corpora[0].documents[3].docid
    turn = 0
    end = time.monotonic() + SECONDS
    while len(generations) < 6 or time.monotonic() < end:
        turn += 1
        if turn <= 2:
            generations.append(index.add(corpora[1 + turn]).generation)
        else:
            generations.append((index.delete(docid) if turn % 2 else index.undelete(docid)).number)
            time.sleep(0.3)
    return generations


def test_eight_clients_while_generations_are_committed(place: Path, corpora: list[Corpus]) -> None:
    with served.serving(place) as running:
        stop = threading.Event()
        clients = [Client(running.url, number, stop) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            committed = write(place, corpora)
            served.wait_until(lambda: any(client.answers and client.answers[-1][0] == committed[-1] for client in clients))
        finally:
            stop.set()
            for client in clients:
                client.join()
    answers = [answer for client in clients for answer in client.answers]
    problems = [problem for client in clients for problem in client.problems]
    assert not problems, problems[:3]
    assert len(committed) >= 4 and len({generation for generation, _, _ in answers}) >= 3
    expected: dict[tuple[int, str], list[tuple[str, float]]] = {}
    for generation in sorted({generation for generation, _, _ in answers}):
        results = Index.open(place, at=generation, device="cpu").search(QUERIES, k=40)
        expected |= {(generation, query): [(hit.docid, hit.score) for hit in hits] for query, hits in zip(QUERIES, results, strict=True)}
    for generation, query, hits in answers:
        right = expected[generation, query]
        assert sorted(docid for docid, _ in hits) == sorted(docid for docid, _ in right), f"generation {generation}"
        assert [score for _, score in hits] == pytest.approx([score for _, score in right], rel=1e-5, abs=1e-6)
    keep(
        {
            "clients": CLIENTS,
            "seconds": SECONDS,
            "answers": len(answers),
            "errors": len(problems),
            "generations": len(committed),
            "p50 ms": round(float(np.percentile([value for client in clients for value in client.milliseconds], 50)), 1),
            "p99 ms": round(float(np.percentile([value for client in clients for value in client.milliseconds], 99)), 1),
        }
    )


def keep(figures: dict[str, Any]) -> None:
    if name := os.environ.get("PROMPTDSI_LOAD_FIGURES"):
        Path(name).write_text(json.dumps(figures))
