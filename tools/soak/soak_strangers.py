"""Indexes that a stranger forged: a good one with any file changed and all checksums put right, looked at by every command that reads.

    python -m tools.soak.soak_strangers --cases 10000        # writes docs/results/soak-strangers.{json,md}

Each case is searched, described, listed and verified; then one of the other commands runs on it, all of them in turn, and `add` wherever
parameters were forged. Every case follows from the seed and its number: `--first NUMBER --cases 1` repeats one. A command ends with an
answer, with one sentence and exit code 1, or with a fault: a traceback, a hang (more than 5 s of the processor), more than 1 GiB, the end
of the process, a control character on the terminal, or harm to files beside the index.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

GOLDEN = ROOT / "tests" / "index" / "golden"
OLD = 0.1  # share of the cases that forge an index of an earlier format
FRESH = 500  # cases that a child looks at
OTHERS: tuple[str, ...] = (
    "add",
    "fast",
    "get",
    "delete",
    "undelete",
    "purge",
    "purge all",
    "rollback",
    "teach",
    "sync",
    "tune",
    "upgrade",
    "eval",
)
OTHERS += ("export faiss", "export beir", "export hf", "search torch", "search int8")


def originals(folder: Path) -> list[Path]:
    """A small index with all that an index may have (prompts, words, passages, queries, merged corpora, deletions), and older ones."""
    import forged
    import small

    from promptdsi import Corpus, Document
    from promptdsi.index import merge_corpora

    corpora = small.stream()
    backbone = small.backbone(folder / "backbone", corpora)
    options: dict[str, Any] = {"keep_probes": 2, "keep_queries": True, "prompts": "s++", "prompt_options": {"prompt_length": 4}}
    options |= {"encoding.passage_tokens": 32}
    index = small.create(folder / "original", corpora[0], backbone, **options)
    index.add(corpora[1], keep_queries=True)
    index.add(corpora[2], fast=True)
    for name in ("tides", "kilns"):
        index.add(Corpus([Document(name, f"A short note on {name} and water.")], name=name))
    index.prune(merge=True)
    fan, merge_corpora.FAN = merge_corpora.FAN, 2
    for name in ("looms", "dyes"):
        index.add(Corpus([Document(name, f"A short note on {name} and water.")], name=name))
    merge_corpora.FAN = fan
    assert len(index.manifest.corpora[-1].document_files) > 1, "no corpus has several files of documents"
    index.delete(corpora[0].documents[0].docid)
    index.delete(corpora[0].documents[1].docid)
    index.rollback()
    index.evaluate(corpora[0], record=True)
    forged.in_full(folder / "original")  # the generations before it are stored against each other
    corpora[3].write(folder / "next")
    corpora[0].write(folder / "known")
    (folder / "files").mkdir()
    (folder / "files" / "tea.txt").write_text("Tea is brewed with water.", "utf-8")
    older = [shutil.copytree(place / "index", folder / place.name) for place in sorted(GOLDEN.glob("format-[123]*"))]  # 4 is the newest's
    for path in (folder / "original", *older):
        (path / "lock").write_bytes(b"")
    return [folder / "original", *older]


def commands(folder: Path, other: str, docid: str) -> list[list[str]]:
    """What is done with a forged index."""

    def path_of(name: str) -> str:
        return str(folder / name)

    at, what = path_of("index"), other.split()[-1]
    cpu = ["--device", "cpu", "--threads", "1"]
    more: dict[str, list[str]] = {
        "add": ["add", at, path_of("next"), *cpu, "--quiet"],
        "fast": ["add", at, path_of("next"), "--fast", *cpu, "--quiet"],
        "get": ["get", at, docid],
        "delete": ["delete", at, docid],
        "undelete": ["undelete", at, docid],
        "purge": ["purge", at, docid],
        "purge all": ["purge", at],
        "rollback": ["rollback", at],
        "teach": ["teach", at, "how is tea made", docid],
        "sync": ["sync", at, path_of("files"), *cpu, "--quiet"],
        "tune": ["tune", at, *cpu, "--quiet"],
        "upgrade": ["upgrade", at],
        "eval": ["eval", at, path_of("known"), "--split", "dev", "--record", "--device", "cpu"],
        "export": ["export", at, "--to", what, "--output", path_of("export")],
        "search": ["search", at, "water", "--engine", what, *cpu],
    }
    search = ["search", at, "water", "how does it work", "--explain", "--where", "arrives!=d9", *cpu]
    return [search, ["info", at], ["log", at], ["verify", at, "--quiet"], more.get(other) or more[other.split()[0]]]


def cases(folder: Path, numbers: range, seed: int) -> Iterator[tuple[int, str, list[list[str]]]]:
    """Forge one index after another: its number, what was forged, and the commands."""
    import forged
    from forgeries import FORGERIES

    newest, *older = originals(folder)
    kinds = {path: documents_of(path) for path in (newest, *older)}
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        forgery, source = rng.choice(FORGERIES), rng.choice(older) if rng.random() < OLD else newest
        for name in ("export", *(f"index-{part}" for part in (".learning", "blobs", "generations", "records", ".creating"))):
            shutil.rmtree(folder / name, ignore_errors=True)
        place = forged.copied(source, folder / "index")
        forgery(rng, place)
        name, other = forgery.__name__.removeprefix("forge_"), OTHERS[number % len(OTHERS)]
        yield number, name, commands(folder, "add" if name == "params" else other, rng.choice(kinds[source]))


def documents_of(path: Path) -> list[str]:
    """The docids of a good index."""
    import forged

    entries = forged.content(forged.current(path))["corpora"]
    lists = [json.loads((path / "blobs" / entry["ids"]).read_bytes()).get("docids", []) for entry in entries]
    return [docid for docids in lists for docid in docids if docid] or ["none"]


def soak(folder: Path, numbers: range, seed: int, most_seconds: float) -> dict[str, Any]:
    from forgeries import BYSTANDER
    from onlooker import OUTCOMES, Onlooker

    bystander, notes = folder / BYSTANDER, "Nobody may touch these notes, which are longer than the number of a process.\n"
    bystander.mkdir()
    started, faults, done = time.monotonic(), list[dict[str, Any]](), 0
    by_forgery, by_command = dict[str, Counter[str]](), dict[str, Counter[str]]()
    slowest, largest = 0.0, 0.0
    with Onlooker() as onlooker:
        (bystander / "notes.txt").write_text(notes)
        for number, forgery, to_run in cases(folder, numbers, seed):
            looks, done = onlooker.look(*to_run), done + 1
            if [path.name for path in bystander.iterdir()] != ["notes.txt"] or (bystander / "notes.txt").read_text() != notes:
                looks.append(looks[-1]._replace(outcome="harm"))
                (bystander / "notes.txt").write_text(notes)
            for look in looks:
                by_forgery.setdefault(forgery, Counter())[look.outcome] += 1
                by_command.setdefault(look.command, Counter())[look.outcome] += 1
                slowest, largest = max(slowest, look.seconds), max(largest, look.mib)
                if look.outcome not in OUTCOMES[:2]:
                    faults.append({"case": number, "forged": forgery} | look._asdict())
                    print(json.dumps(faults[-1]), file=sys.stderr, flush=True)
            if done % FRESH == 0:
                onlooker.stop()
                print(f"{done:,} cases in {time.monotonic() - started:.0f} s, {len(faults)} faults", file=sys.stderr, flush=True)
            if time.monotonic() - started > most_seconds:
                break
    every = (*OUTCOMES, "harm")
    rows = [{"forged": name} | {outcome: count[outcome] for outcome in every} for name, count in sorted(by_forgery.items())]
    rows.append({"forged": "all"} | {outcome: sum(count[outcome] for count in by_forgery.values()) for outcome in every})
    figures: dict[str, Any] = {"faults": len(faults), "cases": done, "commands": sum(count.total() for count in by_forgery.values())}
    figures |= {"seed": seed, "most seconds of processor time for a command": round(slowest, 2), "most MiB": round(largest)}
    by_name = {name: ", ".join(f"{count} × {outcome}" for outcome, count in counts.items()) for name, counts in sorted(by_command.items())}
    return {"rows": rows, **figures, "By command": by_name}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so many")
    parser.add_argument("--print", action="store_true", help="print the figures instead of writing them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = range(arguments.first, arguments.first + arguments.cases)
        record = soak(Path(folder), numbers, arguments.seed, arguments.seconds)
    if arguments.print:
        print(json.dumps(record, indent=1))
    else:
        from tools import evidence

        title = "Indexes forged by a stranger, with right checksums"
        rows = record.pop("rows")
        evidence.write("soak-strangers", title, "make soak", rows, **record)
    return int(bool(record["faults"]))


if __name__ == "__main__":
    sys.exit(main())
