"""Requests that a stranger forged: those of the API with any part changed, and raw bytes, sent to `promptdsi serve` on loopback.

    python -m tools.soak.soak_requests --requests 10000        # writes docs/results/soak-requests.{json,md}

Each is answered, refused (4xx, as JSON), closed, or waited for where its client has not sent all of it. Any other end is a fault: an error
of the server, an answer that is no HTTP, silence. Every request follows from the seed and its number.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

SECONDS_TO_ANSWER, SECONDS_TO_WAIT = 20.0, 0.3  # for a request that is complete, and for one that may not be
WARM_UP = 500  # requests before memory is looked at
MAX_GROWTH = 30.0  # MiB
MOST_SHOWN = 300
TOKEN = "a-token-that-writes"
OUTCOMES = ("answered", "refused", "closed", "waited for", "error", "no HTTP", "silence")
SEARCH = {"query": "water", "k": 3, "explain": True, "min_confidence": 0.1, "where": ["arrives=d0"], "at": 1}
SHAPES: list[tuple[str, str, dict[str, Any], Any]] = [
    ("POST", "/api/search", {}, SEARCH),
    ("POST", "/api/search", {}, {"query": ["water", "tea"], "k": 2}),
    ("GET", "/api/search", {"q": "water", "k": 3, "explain": "true", "where": "arrives=d0", "at": 1}, None),
    ("GET", "/api/documents/DOCID", {"at": 1}, None),
    *(("GET", path, {}, None) for path in ("/api/index", "/api/generations", "/api/sync", "/api/retention", "/api/jobs", "/api/jobs/0")),
    *(("GET", path, {}, None) for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/page/page.js")),
    ("GET", "/api/facets", {"at": 1}, None),
    ("POST", "/api/feedback", {}, {"query": "water", "docid": "DOCID"}),
    ("DELETE", "/api/documents/DOCID", {}, None),
    ("POST", "/api/documents", {"name": "more"}, [{"docid": "a", "text": " ", "title": "c"}]),  # blank: nothing is learned
    ("POST", "/api/undelete", {}, {"docids": ["DOCID"]}),
]
NAMES = (
    "Host",
    "Origin",
    "Authorization",
    "Content-Type",
    "Content-Length",
    "Transfer-Encoding",
    "Expect",
    "Upgrade",
    "Range",
    "X-Forwarded-For",
)
VALUES: tuple[bytes, ...] = (
    b"",
    b"chunked",
    b"gzip, chunked",
    b"-1",
    b"1e9",
    b"99999999999999999999",
    b"0x10",
    b"localhost",
    b"evil.example",
    b"\xff\xfe",
)
VALUES += (b"application/json; charset=utf-16", b"Bearer " + b"x" * 5000, b"100-continue", b"websocket", b"a" * 70_000, b"a\0b", b"a\r\n b")
PIECES = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\0",
    b"HTTP/1.1",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b" ",
    b":",
    b"%",
    b"\xf0\x9f",
)


def forged_request(rng: random.Random) -> tuple[bytes, bool]:
    """A request, and whether all of it is sent."""
    from hostile_values import JUNK, several

    method, path, params, body = rng.choice(SHAPES)
    params, complete, headers = dict(params), True, list[tuple[bytes, bytes]]()
    if rng.random() < 0.3:
        params[rng.choice([*params, "more", "at", "k"])] = rng.choice(JUNK)
    if rng.random() < 0.2:
        method = rng.choice(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "A" * 300])
    if rng.random() < 0.2:
        path = rng.choice([path + "/", path * 20, path.upper(), "/page/../../../etc/passwd", "/page/%2e%2e/%2e%2e/etc/passwd", "//", "*"])
    docid = rng.choice(["x", "..", "a/b/c", "\u202e", "a" * 600, "%00", str(rng.choice(JUNK))])
    target = quote(path.replace("DOCID", docid), safe="/%*", errors="replace")
    target += f"?{urlencode({name: str(value) for name, value in params.items()}, errors='replace')}" if params else ""
    raw = b""
    if body is not None:
        changed = several(rng)(json.loads(json.dumps(body))) if rng.random() < 0.8 else body
        raw = json.dumps(changed).encode() if rng.random() < 0.9 else rng.choice([b"", b"[" * 100_000, b"\xff", b"NaN", b"{" * 50])
        headers += [(b"Content-Type", b"application/json"), (b"Content-Length", str(len(raw)).encode())]
    headers += [(b"Host", b"localhost"), (b"Connection", b"close"), (b"Authorization", f"Bearer {TOKEN}".encode())]
    if rng.random() < 0.3:
        headers.insert(rng.randrange(len(headers) + 1), (rng.choice(NAMES).encode(), rng.choice(VALUES)))
        complete = False
    lines = [f"{method} {target} HTTP/1.1".encode("utf-8", "replace"), *(name + b": " + value for name, value in headers)]
    request = bytearray(b"\r\n".join(lines) + b"\r\n\r\n" + raw)
    if rng.random() < 0.2:
        complete = False
        for _ in range(rng.choice([1, 1, 5])):
            start = rng.randrange(len(request) + 1)
            request[start : start + rng.choice([0, 1, 20])] = rng.choice([*PIECES, rng.randbytes(4)])
    return bytes(request), complete


def outcome_of(port: int, request: bytes, *, complete: bool) -> tuple[str, bytes]:
    """How a request ended, and what was answered."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_TO_ANSWER) as connection:
        try:
            connection.sendall(request)
            connection.settimeout(SECONDS_TO_ANSWER if complete else SECONDS_TO_WAIT)
            while part := connection.recv(1 << 16):
                answer += part
        except TimeoutError:
            if not answer:
                return ("silence" if complete else "waited for"), answer
        except ConnectionError:  # closed before all of the request was read
            pass
    if not answer:
        return "closed", answer
    if not answer.startswith(b"HTTP/1.1 "):
        return "no HTTP", answer
    status = answer[9:12]
    if status[:1] == b"4":
        head, _, body = answer.partition(b"\r\n\r\n")
        plain = (
            body.startswith(b'{"error":') or b"\r\ncontent-type: text/plain" in head.lower() or not body
        )  # no HTTP: uvicorn's own sentence
        return ("refused" if plain else "no HTTP"), answer
    return ("error" if status[:1] == b"5" else "answered"), answer


def soak(folder: Path, count: int, seed: int) -> dict[str, Any]:
    import httpx
    import served
    import small

    from tools.soak.soak_serving import SERVER, resources

    corpora = small.stream()
    small.create(folder / "index", corpora[0], small.backbone(folder / "backbone", corpora)).add(corpora[1])
    counts, faults, before = Counter[str](), 0, dict[str, Any]()
    (folder / "tokens").write_text(f"write {TOKEN}\n")
    server = served.process(folder / "index", "--allow-write", "--token-file", str(folder / "tokens"), program=["-c", SERVER])
    with server as (process, url), httpx.Client(base_url=url, timeout=20) as client:
        served.ready(client)
        port = int(url.strip("/").rpartition(":")[2])
        for number in range(count):
            request, complete = forged_request(random.Random(f"{seed} {number}"))
            outcome, answer = outcome_of(port, request, complete=complete)
            counts[outcome] += 1
            if outcome in OUTCOMES[4:]:
                faults += 1
                print(number, outcome, request[:MOST_SHOWN], answer[:MOST_SHOWN], file=sys.stderr, flush=True)
            if number == min(WARM_UP, count // 2):
                time.sleep(1)
                before = resources(process.pid)
        assert client.post("/api/search", json={"query": "water"}).status_code == 200 and client.get("/readyz").status_code == 200
        time.sleep(20)  # longer than an idle connection stays
        after = resources(process.pid)
    faults += after["MiB"] > before["MiB"] + MAX_GROWTH
    rows = [{"outcome": outcome, "requests": counts[outcome]} for outcome in OUTCOMES]
    return {
        "rows": rows,
        "faults": faults,
        "requests": count,
        "seed": seed,
        f"The server after {WARM_UP} requests": before,
        "And at the end": after,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from tools import evidence

    with tempfile.TemporaryDirectory() as folder:
        record = soak(Path(folder), arguments.requests, arguments.seed)
    rows = record.pop("rows")
    evidence.write("soak-requests", "Requests forged by a stranger", "make soak", rows, **record)
    return int(bool(record["faults"]))


if __name__ == "__main__":
    sys.exit(main())
