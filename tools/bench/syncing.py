"""Measure `sync` of a large folder: when nothing changed, and when ten files did.

    python -m tools.bench.syncing          # writes docs/results/bench-syncing.{json,md}

Ten thousand text files in a hundred folders, each with the first sixty words of a paragraph of squadx. The index is created with `--effort
quick`; each command is a process of its own, as from the command line. Changed are ten files: six rewritten, two new, two deleted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from promptdsi.corpus.sources import Request, squadx
from tools import evidence

FILES, WORDS, ROUNDS = 10_000, 60, 3
PROMPTDSI = [sys.executable, "-m", "promptdsi"]


def write_files(folder: Path) -> None:
    texts = [document.text for document in squadx.build(Request()).corpus.documents]
    for number in range(FILES):
        path = folder / f"{number % 100:02d}" / f"note-{number:05d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = " ".join(texts[number % len(texts)].split()[:WORDS])
        path.write_text(f"Note {number}. {text}", "utf-8")


def change(folder: Path, turn: int) -> None:
    files = sorted(folder.glob("*/note-*.txt"))[100 * turn :]
    for path in files[:6]:
        path.write_text(f"Rewritten in turn {turn}: {path.stem} tells of something else now.", "utf-8")
    for path in files[6:8]:
        path.unlink()
    for number in range(2):
        (folder / f"new-{turn}-{number}.txt").write_text(f"A new file of turn {turn}, number {number}.", "utf-8")


def timed(*words: str) -> tuple[float, Any]:
    started = time.monotonic()
    outcome = subprocess.run([*PROMPTDSI, *words], check=True, capture_output=True, text=True)
    return time.monotonic() - started, json.loads(outcome.stdout) if "--json" in words else None


def measure(place: Path) -> None:
    folder, index = place / "notes", str(place / "index")
    write_files(folder)
    created, _ = timed("create", index, str(folder), "--effort", "quick", "--offline", "--device", "cpu", "--quiet")
    rows = [{"command": "create --effort quick", "changes": FILES, "s": created}]
    sync = ("sync", index, str(folder), "--json", "--quiet", "--device", "cpu")
    for turn in range(ROUNDS):
        seconds, report = timed(*sync)
        assert not (report["added"] or report["updated"] or report["deleted"])
        rows.append({"command": "sync" if turn else "sync, the first", "changes": 0, "s": seconds})
        change(folder, turn)
        rows.append({"command": "sync --dry-run", "changes": 10, "s": timed(*sync, "--dry-run")[0]})
        seconds, report = timed(*sync)
        assert [len(report[kind]) for kind in ("added", "updated", "deleted")] == [2, 6, 2]
        rows.append({"command": "sync", "changes": 10, "s": seconds})
    evidence.write("bench-syncing", "Bringing 10,000 files in step", "python -m tools.bench.syncing", rows, files=FILES)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))
