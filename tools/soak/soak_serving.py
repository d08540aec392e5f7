"""Two load tests of the server: eight clients search while generations are committed, then four while two hundred others attack.

python -m tools.soak.soak_serving [SECONDS [ATTACK_SECONDS]]

The first is the load test of `make test`, for a minute. In the second, a hundred connections pipeline requests and never read, and a
hundred send one byte a second; each that the server closes is replaced. All of it is on this machine's loopback.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tools import evidence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
CLIENTS, NEVER_READ, SLOW = 4, 100, 50  # SLOW: connections that send headers slowly, and as many that send bodies slowly
PAUSE = 0.02  # seconds of a client between an answer and its next search
WARM_UP_SECONDS = 30.0
SECONDS_TO_SETTLE = 20.0  # longer than an idle connection stays
MAX_RATIO, MAX_GROWTH = 3.0, 20.0  # of p99 under attack and quiet; of memory, in MiB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("attack_seconds", type=float, nargs="?", default=300.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        load = load_test(Path(folder), arguments.seconds)
        rows, facts = attack_test(Path(folder), arguments.seconds, arguments.attack_seconds)
    evidence.write("soak-serving", "Clients while generations are committed, and under attack", "make soak", [*load, *rows], **facts)
    wrong = problems(rows, facts)
    print("\n".join(wrong), file=sys.stderr)
    return int(not load or bool(wrong))


def load_test(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """The test with its figures; nothing if it fails."""
    figures = folder / "figures.json"
    environment = os.environ | {"PROMPTDSI_LOAD_SECONDS": str(seconds), "PROMPTDSI_LOAD_FIGURES": str(figures)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/serving/test_serving_load.py"]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if outcome.returncode:
        print(outcome.stdout[-4000:], file=sys.stderr)
        return []
    return [{"phase": "generations are committed", "attackers": 0, **json.loads(figures.read_text("utf-8"))}]


def attack_test(folder: Path, quiet_seconds: float, seconds: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figures of clients without and with attackers, and what the server takes before and after the attack."""
    import attacks
    import httpx
    import served
    import small

    corpora = small.stream()
    small.create(folder / "index", corpora[0], small.backbone(folder / "backbone", corpora)).add(corpora[1])
    chosen = {attacks.never_read: NEVER_READ, attacks.send_headers_slowly: SLOW, attacks.send_body_slowly: SLOW}
    with served.process(folder / "index") as (process, url), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with httpx.Client(base_url=url) as client:
            served.ready(client)
        port = int(url.strip("/").rpartition(":")[2])
        # A first wave: what is set up, started or allocated once does not count as growth.
        start_threads(url)
        first = pool.submit(attacks.run, port, WARM_UP_SECONDS, pause=1.0, attacks=chosen)
        measure(url, WARM_UP_SECONDS)
        first.result()
        time.sleep(SECONDS_TO_SETTLE)
        quiet = measure(url, quiet_seconds)
        before = resources(process.pid)
        future = pool.submit(attacks.run, port, seconds, pause=1.0, attacks=chosen)
        attacked = measure(url, seconds)
        closed: Counter[str] = future.result()
        time.sleep(SECONDS_TO_SETTLE)
        after = resources(process.pid)
    rows = [{"phase": "quiet", "attackers": 0, **quiet}, {"phase": "under attack", "attackers": sum(chosen.values()), **attacked}]
    return rows, {"Attackers whose connection was closed": dict(closed), "The server before the attack": before, "And after it": after}


def start_threads(url: str) -> None:
    """Large requests at the same time: the server starts its second worker when searches have to wait."""
    import httpx

    def search() -> None:
        httpx.post(f"{url}api/search", json={"query": ["water"] * 40, "explain": True}, timeout=60)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(url: str, seconds: float) -> dict[str, Any]:
    """Let clients search for so long, one search after another; how long they take."""
    import httpx

    milliseconds: list[float] = []
    refused = Counter[str]()
    end = time.monotonic() + seconds

    def search() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while time.monotonic() < end:
                began = time.perf_counter()
                try:
                    status = str(client.post("/api/search", json={"query": "water"}).status_code)
                except httpx.TransportError as error:
                    status = type(error).__name__
                milliseconds.append(1000 * (time.perf_counter() - began))
                if status != "200":
                    refused[status] += 1
                time.sleep(PAUSE)

    threads = [threading.Thread(target=search) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = (round(float(value), 1) for value in np.percentile(milliseconds, [50, 99]))
    figures = {"clients": CLIENTS, "seconds": seconds, "answers": len(milliseconds) - refused.total(), "errors": refused.total()}
    return figures | {"generations": 0, "p50 ms": p50, "p99 ms": p99}


def resources(pid: int) -> dict[str, float]:
    """What a process takes: memory, threads, descriptors."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return {"MiB": round(int(status["VmRSS"].split()[0]) / 1024, 1), "threads": int(status["Threads"]), "descriptors": descriptors}


def problems(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> list[str]:
    """What is not as promised."""
    quiet, attacked = rows
    before, after = facts["The server before the attack"], facts["And after it"]
    checks = {
        "searches were refused": quiet["errors"] or attacked["errors"],
        f"the attack made p99 more than {MAX_RATIO:g} times as long": attacked["p99 ms"] > MAX_RATIO * quiet["p99 ms"],
        "memory has grown": after["MiB"] > before["MiB"] + MAX_GROWTH,
        "threads are left": after["threads"] > before["threads"],
        "descriptors are left": after["descriptors"] > before["descriptors"],
    }
    return [problem for problem, true in checks.items() if true]


if __name__ == "__main__":
    sys.exit(main())
