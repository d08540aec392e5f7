"""Bytes that atheris (libFuzzer) finds by watching what each parser of a stranger's files does with them: `tests/parsers.py`.

    python -m tools.soak.soak_parsers --seconds 60         # of each parser; writes docs/results/soak-parsers.{json,md}
    python -m tools.soak.soak_parsers manifest FOLDER …    # one parser in this process, with options of libFuzzer

An exception that is no refusal, more than 5 s, more than 1 GiB or the end of the process is a fault; libFuzzer keeps the bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

LIMITS = ["-timeout=5", "-rss_limit_mb=1024", "-max_len=65536", "-print_final_stats=1", "-verbosity=0", "-seed=1"]
WATCHED = ["promptdsi.checks", "promptdsi.index", "promptdsi.model", "promptdsi.engine", "promptdsi.methods.options"]
STATISTIC = re.compile(r"stat::(\w+):\s+(\d+)")


def fuzz(name: str, options: list[str]) -> None:
    """Try bytes on one parser, for as long as the options say: this does not return."""
    import atheris

    with atheris.instrument_imports(include=WATCHED):
        import parsers

    with parsers.parsers() as every:

        def try_bytes(raw: bytes) -> None:
            with contextlib.suppress(*parsers.ALLOWED):
                every[name](raw)

        atheris.Setup([sys.argv[0], *options], try_bytes)
        atheris.Fuzz()


def samples(folder: Path) -> dict[str, list[bytes]]:
    """What honest files hold, by parser: bytes to begin with."""
    import forged
    import small

    corpora = small.stream()
    index = small.create(folder / "index", corpora[0], small.backbone(folder / "backbone", corpora), keep_probes=2, keep_queries=True)
    index.evaluate(corpora[0], record=True)
    manifest = forged.content(forged.current(folder / "index"))
    entry, record = manifest["corpora"][0], next((folder / "index" / "records").glob("*.json"))

    def blob(name: str) -> bytes:
        return (folder / "index" / "blobs" / name).read_bytes()

    files = {part: [blob(entry[part])] for part in ("ids", "words", "documents", "probes", "queries")}
    files |= {"header": [blob(entry["rows"]), blob(manifest["encoder"])], "tokenizer": [blob(manifest["tokenizer"])]}
    files |= {"manifest": [json.dumps(manifest).encode()], "record": [json.dumps(forged.content(record)).encode()]}
    return files | {"statistics": [blob(manifest["statistics"])], "CURRENT": [(folder / "index" / "CURRENT").read_bytes()]}


def soak(seconds: int, folder: Path) -> list[dict[str, Any]]:
    rows = []
    for name, begins in sorted(samples(folder).items()):
        corpus, artifacts = folder / name, folder / f"{name}-kept"
        corpus.mkdir()
        artifacts.mkdir()
        for number, raw in enumerate(begins):
            (corpus / str(number)).write_bytes(raw)
        command = [
            sys.executable,
            "-m",
            "tools.soak.soak_parsers",
            name,
            *LIMITS,
            f"-max_total_time={seconds}",
            f"-artifact_prefix={artifacts}/",
        ]
        ended = subprocess.run([*command, str(corpus)], capture_output=True, text=True, cwd=ROOT, check=False)
        figures = dict(STATISTIC.findall(ended.stderr))
        bad = sorted(artifacts.iterdir())
        if ended.returncode or bad:
            print(f"{name}: exit code {ended.returncode}, {len(bad)} inputs kept\n{ended.stderr[-3000:]}", file=sys.stderr)
            for path in bad:
                print(path.name, path.read_bytes()[:2000], file=sys.stderr)
        row = {"parser": name, "seconds": seconds, "inputs": int(figures.get("number_of_executed_units", 0))}
        rows.append(row | {"kept as new": int(figures.get("new_units_added", 0)), "faults": len(bad) or int(ended.returncode != 0)})
    return rows


def main() -> int:
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        fuzz(sys.argv[1], sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each parser")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("the parsers are not fuzzed: atheris is not installed (pip install atheris; Linux and macOS)", file=sys.stderr)
        return 1
    from tools import evidence

    with tempfile.TemporaryDirectory() as folder:
        rows = soak(arguments.seconds, Path(folder))
    evidence.write("soak-parsers", "Bytes that atheris tried on the parsers of a stranger's files", "make soak", rows)
    return int(any(row["faults"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
