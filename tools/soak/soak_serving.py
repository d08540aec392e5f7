"""Two load tests of the server: eight clients search while generations are committed, then four while two hundred others attack.

python -m tools.soak.soak_serving [SECONDS [ATTACK_SECONDS]]

The first is the load test of `make test`, for a minute. In the second, a hundred connections pipeline requests and never read, and a
hundred send one byte a second; each that the server closes is replaced. Quiet and attacked turns alternate, so that noise of the machine
shows as a difference between turns. All of it is on this machine's loopback.
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
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools import evidence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
CLIENTS, NEVER_READ, SLOW = 4, 100, 50  # SLOW: connections that send headers slowly, and as many that send bodies slowly
PAUSE = 0.02  # seconds of a client between an answer and its next search
TURNS, QUIET_SHARE = 5, 0.4  # turns of quiet and attack; how long a quiet one takes, in parts of an attacked one
WARM_UP_SECONDS = 30.0
SECONDS_TO_SETTLE = 20.0  # longer than an idle connection stays
MAX_RATIO, MAX_GROWTH = 3.0, 20.0  # of p99 under attack and quiet; of memory, in MiB
# The server with threads that the system knows by name: Python tells it no names before 3.14.
SERVER = """
import ctypes, threading
begin = threading.Thread.run
def run(thread):
    ctypes.CDLL(None).prctl(15, thread.name.removeprefix("promptdsi-").encode()[:15], 0, 0, 0)  # PR_SET_NAME
    begin(thread)
threading.Thread.run = run
from promptdsi.cli.main import main
main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("attack_seconds", type=float, nargs="?", default=300.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        load = load_test(Path(folder), arguments.seconds) if arguments.seconds else []
        rows, facts = attack_test(Path(folder), arguments.attack_seconds)
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


def attack_test(folder: Path, seconds: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figures of clients without and with attackers, in turns, and what the server takes before and after all of them."""
    import attacks
    import httpx
    import served
    import small

    corpora = small.stream()
    small.create(folder / "index", corpora[0], small.backbone(folder / "backbone", corpora)).add(corpora[1])
    chosen = {attacks.never_read: NEVER_READ, attacks.send_headers_slowly: SLOW, attacks.send_body_slowly: SLOW}
    each, taken, closed = seconds / TURNS, dict[str, list[list[Answer]]](quiet=[], attacked=[]), Counter[str]()
    server = served.process(folder / "index", program=["-c", SERVER])
    with server as (process, url), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with httpx.Client(base_url=url) as client:
            served.ready(client)
        port = int(url.strip("/").rpartition(":")[2])
        # A first wave: what is set up, started or allocated once does not count as growth.
        start_threads(url, process.pid)
        first = pool.submit(attacks.run, port, WARM_UP_SECONDS, pause=1.0, attacks=chosen)
        measure(url, WARM_UP_SECONDS)
        first.result()
        time.sleep(SECONDS_TO_SETTLE)
        before = resources(process.pid)
        for _ in range(TURNS):
            taken["quiet"].append(measure(url, QUIET_SHARE * each))
            future = pool.submit(attacks.run, port, each, pause=1.0, attacks=chosen)
            taken["attacked"].append(measure(url, each))
            closed += future.result()
        time.sleep(SECONDS_TO_SETTLE)
        after = resources(process.pid)
    rows = []
    for phase, turns in taken.items():
        figures = figures_of([answer for turn in turns for answer in turn], seconds * (QUIET_SHARE if phase == "quiet" else 1))
        rows.append({"phase": phase, "attackers": sum(chosen.values()) if phase == "attacked" else 0, **figures})
    of_turns = {phase: ", ".join(f"{figures_of(turn, each)['p99 ms']:g}" for turn in turns) for phase, turns in taken.items()}
    ratio = rows[1]["p99 ms"] / rows[0]["p99 ms"]
    facts = {"p99 under attack, in parts of the quiet one": round(ratio, 2), "p99 ms of each turn": of_turns}
    facts |= {"Attackers whose connection was closed": dict(closed)}
    return rows, facts | {"The server before the attacks": before, "And after them": after}


def start_threads(url: str, pid: int) -> None:
    """Large requests at the same time, until the server has started its second worker, which it does when searches have to wait."""
    import httpx

    def search(_: int) -> None:
        httpx.post(f"{url}api/search", json={"query": [f"water {number}" for number in range(100)], "explain": True}, timeout=60)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(20):
            list(pool.map(search, range(6)))
            if "serve-relief" in resources(pid)["threads"]:
                return
    raise AssertionError("the second worker did not start")


class Answer(NamedTuple):
    """How long an answer took, and its status, or the name of an error."""

    milliseconds: float
    status: str


def measure(url: str, seconds: float) -> list[Answer]:
    """Let clients search for so long, one search after another."""
    import httpx

    answers: list[Answer] = []
    end = time.monotonic() + seconds

    def search() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while time.monotonic() < end:
                began = time.perf_counter()
                try:
                    status = str(client.post("/api/search", json={"query": "water"}).status_code)
                except httpx.TransportError as error:
                    status = type(error).__name__
                answers.append(Answer(1000 * (time.perf_counter() - began), status))
                time.sleep(PAUSE)

    threads = [threading.Thread(target=search) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def figures_of(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    p50, p99 = (round(float(value), 1) for value in np.percentile([answer.milliseconds for answer in answers], [50, 99]))
    errors = sum(answer.status != "200" for answer in answers)
    figures = {"clients": CLIENTS, "seconds": seconds, "answers": len(answers) - errors, "errors": errors}
    return figures | {"generations": 0, "p50 ms": p50, "p99 ms": p99}


def resources(pid: int) -> dict[str, Any]:
    """What a process takes: memory, threads by name, descriptors."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    threads = sorted(path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm"))
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return {"MiB": round(int(status["VmRSS"].split()[0]) / 1024, 1), "threads": ", ".join(threads), "descriptors": descriptors}


def problems(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> list[str]:
    """What is not as promised."""
    quiet, attacked = rows
    before, after = facts["The server before the attacks"], facts["And after them"]
    checks = {
        "searches were refused": quiet["errors"] or attacked["errors"],
        f"the attack made p99 more than {MAX_RATIO:g} times as long": attacked["p99 ms"] > MAX_RATIO * quiet["p99 ms"],
        "memory has grown": after["MiB"] > before["MiB"] + MAX_GROWTH,
        "threads are left": after["threads"].count(",") > before["threads"].count(","),
        "descriptors are left": after["descriptors"] > before["descriptors"],
    }
    return [problem for problem, true in checks.items() if true]


if __name__ == "__main__":
    sys.exit(main())
