"""Indexes that a stranger forged: a good one with any file changed and all checksums put right, looked at by every reading command.

    python -m tools.soak.soak_strangers --cases 10000        # writes docs/results/soak-strangers.{json,md}

Every case follows from the seed and its number: `--first NUMBER --cases 1` repeats one. The outcome of a command is an answer, one
sentence with exit code 1, or a fault: a traceback, a hang, or the end of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

FAULTS = ("traceback", "hang", "crash")
FRESH = 500  # cases that a child looks at
JUNK: list[Any] = [None, True, False, 0, 1, -1, 2, 3, 7, 63, 64, 65, 255, 1000, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**18)]
JUNK += [0.0, 0.5, -1.5, 1e-300, 1e308, -1e308, "", "x", "0", "none", "topic", "coda", "../../etc/passwd", "a" * 5000, "\ud800", "\0", "é▁"]
JUNK += [[], {}, [[]], [None], [0], [1, 2, 3], [-1], ["x"], {"a": 1}, {"": {}}, {"type": "Sequence"}, [[[[[[]]]]]], [2**40] * 8]
SCRIPTS = [
    "ALTER TABLE documents RENAME TO old; CREATE VIEW documents AS SELECT place, docid, title, text, metadata FROM old",
    "ALTER TABLE documents RENAME TO old; CREATE VIEW documents AS WITH RECURSIVE n(place) AS (SELECT 0 UNION ALL SELECT place + 1 FROM n) "
    "SELECT place, 'a' AS docid, '' AS title, hex(zeroblob(100000)) AS text, NULL AS metadata FROM n",
    "ALTER TABLE documents ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL",
    "CREATE TABLE more (a); INSERT INTO more VALUES (1)",
    "CREATE INDEX by_title ON documents (title)",
    "CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM documents; END",
    "DROP TABLE documents",
    "DELETE FROM documents",
    "UPDATE documents SET place = place + 1000000",
    "UPDATE documents SET place = -place - 1",
    "UPDATE documents SET text = zeroblob(10)",
    "UPDATE documents SET docid = x'ff', title = x'fe'",
    "UPDATE documents SET text = CAST(x'fffefd' AS TEXT)",
    "UPDATE documents SET metadata = '[1, 2]'",
    "UPDATE documents SET metadata = '{\"a\": 1e999, \"b\": ' || substr(hex(zeroblob(50000)), 1, 60000) || '}'",
    "UPDATE documents SET metadata = replace(hex(zeroblob(20000)), '0', '[')",
    'UPDATE documents SET metadata = \'{"pages": [0, "x", null], "a": {"b": [1, {"c": 2}]}}\'',
    "UPDATE documents SET text = replace(hex(zeroblob(200000)), '0', '# x\n')",
    "UPDATE documents SET docid = 'same'",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = replace(sql, 'TEXT', 'BLOB')",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = 1",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET type = 'view'",
    "PRAGMA user_version = -1",
    "INSERT INTO documents SELECT place + 100, docid, title, text, metadata FROM documents",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something can be changed; of long lists the first and the last few."""
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    if len(inner) > 12:
        inner = inner[:6] + inner[-6:]
    return [path, *(place for key, entry in inner for place in places(entry, (*path, key)))]


def mutate(rng: random.Random, value: Any) -> Any:
    """A JSON value with something in it replaced, removed, added, moved, or a number changed a little."""
    path = rng.choice(places(value)[1:] or [()])
    if not path:
        return rng.choice(JUNK)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    key, old = path[-1], holder[path[-1]]
    kind = rng.randrange(8)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
        if rng.random() < 0.5:
            holder[rng.choice(["more", "", "\0", "x" * 300, key.upper()])] = old
    elif kind == 1 and isinstance(old, int | float):
        holder[key] = rng.choice([old + 1, old - 1, -old, old * 1000, float(old), str(old), bool(old)])
    elif kind == 2:
        source = rng.choice(places(value)[1:])
        other = value
        for inner in source:
            other = other[inner]
        holder[key] = json.loads(json.dumps(other))
    elif kind == 3 and isinstance(holder, list):
        holder[key:key] = [json.loads(json.dumps(old))] * rng.choice([1, 1, 3, 1000])
    elif kind == 4 and isinstance(old, str):
        holder[key] = rng.choice([old[:-1], old + "0", old[::-1], old.upper(), old * 50, [old], {old: old}])
    else:
        holder[key] = json.loads(json.dumps(rng.choice(JUNK)))
    return value


def several(rng: random.Random) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            value = mutate(rng, value)
        return value

    return change


def forge_manifest(rng: random.Random, folder: Path) -> None:
    import forged

    paths = sorted((folder / "generations").glob("*.json"))
    path = forged.current(folder) if rng.random() < 0.7 else rng.choice(paths)
    forged.manifest(folder, several(rng), path)


def forge_params(rng: random.Random, folder: Path) -> None:
    """Some part of the manifest that reaches deepest into the code."""
    import forged

    part = rng.choice(["params", "config", "metadata", "event", "prompts", "corpora", "erase", "tombstones"])
    forged.manifest(folder, lambda value: value.update({part: several(rng)(value[part])}))


def forge_json(rng: random.Random, folder: Path) -> None:
    import forged

    forged.json_blob(folder, rng.choice(names(folder, ".json")), several(rng))


def forge_tokenizer(rng: random.Random, folder: Path) -> None:
    import forged

    forged.json_blob(folder, forged.content(forged.current(folder))["tokenizer"], several(rng))


def forge_header(rng: random.Random, folder: Path) -> None:
    import forged

    forged.header(folder, rng.choice(names(folder, ".safetensors")), several(rng))


def forge_tensors(rng: random.Random, folder: Path) -> None:
    """Other numbers behind a right header: NaN, Inf, huge and negative ones, or noise."""
    import forged

    name = rng.choice(names(folder, ".safetensors"))
    raw = bytearray((folder / "blobs" / name).read_bytes())
    first = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(rng.choice([1, 3, 20])):
        start = first + rng.randrange(max(1, (len(raw) - first) // 4)) * 4
        patterns = [b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x80", rng.randbytes(4)]
        raw[start : start + 4] = rng.choice(patterns)
    forged.blob(folder, name, bytes(raw))


def forge_database(rng: random.Random, folder: Path) -> None:
    import forged

    forged.database(folder, rng.choice(names(folder, ".sqlite")), rng.choice(SCRIPTS))


def forge_pages(rng: random.Random, folder: Path) -> None:
    """Bytes of a database: its header, its trees, its records."""
    import forged

    name = rng.choice(names(folder, ".sqlite"))
    raw = bytearray((folder / "blobs" / name).read_bytes())
    for _ in range(rng.choice([1, 4, 30])):
        start = rng.choice([rng.randrange(100), 4096 + rng.randrange(64), rng.randrange(len(raw))]) % len(raw)
        raw[start : start + 2] = rng.choice([b"\0\0", b"\xff\xff", b"\0\2", rng.randbytes(2)])
    if rng.random() < 0.2:
        source, target = rng.randrange(len(raw) // 4096) * 4096, rng.randrange(len(raw) // 4096) * 4096
        raw[target : target + 4096] = raw[source : source + 4096]
    forged.blob(folder, name, bytes(raw))


def forge_bytes(rng: random.Random, folder: Path) -> None:
    """Any file cut, lengthened, or with other bytes; blobs get the name that follows."""
    import forged

    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 5])):
        start = rng.randrange(len(raw) + 1)
        raw[start : start + rng.choice([0, 1, 4, 1000])] = rng.choice([b"", b"\0", b"9" * 5000, b"[" * 3000, b"\xff\xfe", rng.randbytes(8)])
    if path.parent.name == "blobs":
        forged.blob(folder, path.name, bytes(raw))
    elif path.parent.name == "generations" and path == forged.current(folder):
        forged.raw_manifest(folder, bytes(raw[11:-77]))
    else:
        forged.replace(path, bytes(raw))


def forge_kind(rng: random.Random, folder: Path) -> None:
    """A pipe, a link, a folder or a hole in place of a file."""
    import forged

    path = rng.choice(
        [*sorted(path for path in folder.rglob("*") if path.is_file()), folder / "lock", folder / "records" / "000001-x.json"]
    )
    path.unlink(missing_ok=True)
    kind = rng.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(rng.choice(["/dev/zero", "/etc/passwd", str(path), "nowhere", "/dev/tty"]))
    elif kind == 2:
        path.mkdir()
    else:
        path.write_bytes(b"" if kind == 3 else b"{")
        os.truncate(path, rng.choice([0, 100, 5 << 30, 1 << 40]))
        if path.parent.name == "blobs":
            forged.rename(folder, path.name, path.name, path.stat().st_size)


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / "blobs").iterdir() if path.suffix == kind)


FORGERIES = [forge_manifest, forge_params, forge_json, forge_tokenizer, forge_header, forge_tensors, forge_database, forge_pages]
FORGERIES += [forge_bytes, forge_kind]


def original_index(folder: Path) -> Path:
    """A small index with all that an index may have: prompts, words, passages, probes, queries, deleted documents, a rollback."""
    import small

    corpora = small.stream()
    backbone = small.backbone(folder / "backbone", corpora)
    options: dict[str, Any] = {"keep_probes": 2, "keep_queries": True, "prompts": "s++", "prompt_options": {"prompt_length": 4}}
    index = small.create(folder / "original", corpora[0], backbone, **options)
    index.add(corpora[1], keep_queries=True)
    index.delete(corpora[0].documents[0].docid)
    index.rollback()
    index.evaluate(corpora[0], record=True)
    (folder / "original" / "lock").write_bytes(b"")
    return folder / "original"


def commands(folder: Path) -> list[list[str]]:
    at = str(folder)
    search = ["search", at, "water", "how does it work", "--explain", "--where", "arrives!=d9", "--device", "cpu", "--threads", "1"]
    return [search, ["info", at], ["log", at], ["verify", at, "--quiet"]]


def soak(folder: Path, numbers: range, seed: int, most_seconds: float, index: Path | None = None) -> dict[str, Any]:
    import forged
    from onlooker import OUTCOMES, Onlooker

    original, started = index or original_index(folder), time.monotonic()
    counts = {forgery.__name__: Counter[str]() for forgery in FORGERIES}
    faults: list[dict[str, Any]] = []
    slowest, largest, cases = 0.0, 0.0, 0
    with Onlooker() as onlooker:
        for number in numbers:
            if time.monotonic() - started > most_seconds:
                break
            rng = random.Random(f"{seed} {number}")
            forgery, place = rng.choice(FORGERIES), forged.copied(original, folder / "index")
            forgery(rng, place)
            looks = onlooker.look(*commands(place))
            cases += 1
            for look in looks:
                counts[forgery.__name__][look.outcome] += 1
                slowest, largest = max(slowest, look.seconds), max(largest, look.mib)
                if look.outcome in FAULTS or look.seconds > 5:
                    faults.append({"case": number, "forgery": forgery.__name__} | look._asdict())
                    print(json.dumps(faults[-1]), file=sys.stderr, flush=True)
            if cases % FRESH == 0:
                onlooker.stop()
    rows = [{"forged": name.removeprefix("forge_")} | {outcome: count[outcome] for outcome in OUTCOMES} for name, count in counts.items()]
    total = {"forged": "all"} | {outcome: sum(count[outcome] for count in counts.values()) for outcome in OUTCOMES}
    figures: dict[str, float] = {"cases": cases, "commands": sum(count.total() for count in counts.values()), "seed": seed}
    figures |= {"most seconds of processor time for a command": round(slowest, 2), "most MiB": round(largest)}
    return {"rows": [*rows, total], "faults": len(faults), **figures}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so many")
    parser.add_argument("--index", type=Path, help="a good index to forge, on the disk of temporary files (default: a small one)")
    parser.add_argument("--print", action="store_true", help="print the figures instead of writing them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = range(arguments.first, arguments.first + arguments.cases)
        record = soak(Path(folder), numbers, arguments.seed, arguments.seconds, arguments.index)
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
