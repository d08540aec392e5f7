"""What the server adds to a search, and what answering together gains.

    python -m tools.bench.serving          # writes docs/results/bench-serving.{json,md}

The index holds the demo corpus and the embedded encoder. Searches in Python and over HTTP take turns, so that a busy moment
of the machine meets both. Python searches in a process of its own, as `Index` does by default.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tools import evidence

ROUNDS, QUERIES, CLIENTS, SECONDS = 5, 60, 8, 4.0
PYTHON = """
import json, sys, time
from promptdsi.index.index import Index
index = Index.open(sys.argv[1], device="cpu")
for line in sys.stdin:
    began = time.perf_counter()
    index.search(json.loads(line), k=10)
    print(time.perf_counter() - began, flush=True)
"""


def main() -> None:
    from promptdsi.corpus.sources import Request, build_stream
    from promptdsi.index.index import Index

    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as `promptdsi serve` sets it
    corpora = build_stream("demo", Request()).corpora
    queries = [pair.query.text for pair in corpora[0].pairs("test")][:QUERIES]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        Index.create(path, corpora[0], params={"fit.epochs": 0}, offline=True, device="cpu")
        rows = [measure(path, queries) for _ in range(ROUNDS)]
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    spread = {name: f"{min(row[name] for row in rows):.2f} to {max(row[name] for row in rows):.2f}" for name in rows[0]}
    table = [{"figure": name, "median": round(value, 2), "from … to": spread[name]} for name, value in middle.items()]
    evidence.write("bench-serving", "Searching over HTTP", "make bench", table, rounds=ROUNDS, queries=len(queries), clients=CLIENTS)


def measure(path: Path, queries: list[str]) -> dict[str, float]:
    """One round: the same searches in Python and over HTTP, then one client against eight."""
    serve = [sys.executable, "-m", "promptdsi", "serve", str(path), "--port", "0", "--device", "cpu"]
    server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    python = subprocess.Popen([sys.executable, "-c", PYTHON, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stderr and python.stdin and python.stdout
        port = int(server.stderr.readline().split(" on http://127.0.0.1:")[1].split("/")[0])
        over_http = client(port)
        until_ready(port)

        def in_python(query: str) -> float:
            assert python.stdin and python.stdout
            python.stdin.write(json.dumps(query) + "\n")
            python.stdin.flush()
            return float(python.stdout.readline())

        for query in queries[:10]:
            in_python(query), over_http(query)
        pairs = [(in_python(query), over_http(query)) for query in queries]
        local = statistics.median(direct for direct, _ in pairs)
        added = statistics.median(remote - direct for direct, remote in pairs)
        alone, parallel = throughput(port, 1, queries), throughput(port, CLIENTS, queries)
    finally:
        server.terminate()
        python.kill()
        server.wait(), python.wait()
    return {
        "one search in Python, ms, p50": 1000 * local,
        "added over HTTP, ms, p50": 1000 * added,
        "one client, queries/s": alone,
        "eight clients, queries/s": parallel,
        "eight clients ÷ one": parallel / alone,
    }


def client(port: int) -> Callable[[str], float]:
    """A connection that stays; gives the seconds each search took."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def rank_queries(query: str) -> float:
        body = json.dumps({"query": query, "k": 10})
        began = time.perf_counter()
        connection.request("POST", "/api/search", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        seconds = time.perf_counter() - began
        assert answer.status == 200, content
        return seconds

    return rank_queries


def until_ready(port: int) -> None:
    for _ in range(600):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/readyz")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.1)
    raise TimeoutError("the server did not get ready")


def throughput(port: int, clients: int, queries: list[str]) -> float:
    """Answers per second to clients that each ask one query after another."""
    counts = [0] * clients
    began = time.perf_counter()
    end = began + SECONDS

    def work(place: int) -> None:
        rank_queries = client(port)
        turn = place
        while time.perf_counter() < end:
            rank_queries(queries[turn % len(queries)])
            turn += 1
            counts[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
