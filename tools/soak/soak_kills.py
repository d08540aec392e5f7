"""Kill `add` with SIGKILL at random times and look at what is left: the old generation or the new one, by what a search returns.

    python -m tools.soak.soak_kills --kills 100        # writes docs/results/soak-kills.{json,md}

One process imports everything and forks a child for each kill, so that the kill falls into the work and not into imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print", action="store_true", help="print the figures instead of writing them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = soak(Path(folder), arguments.kills, arguments.seed)
    if arguments.print:
        print(json.dumps(record))
        return
    from tools import evidence

    evidence.write("soak-kills", "Killed with SIGKILL while adding", "make soak", [record])


def soak(folder: Path, kills: int, seed: int) -> dict[str, object]:
    import small

    from promptdsi import Index
    from promptdsi.index.store import Store

    corpora = small.stream()
    backbone = small.backbone(folder / "backbone", corpora)
    original = folder / "original"
    small.create(original, corpora[0], backbone, add_epochs=20).add(corpora[1])
    old = small.signature(original)
    started = time.monotonic()
    complete = small.copied(original, folder / "whole")
    Index.open(complete, device="cpu").add(corpora[2])
    new, seconds = small.signature(complete), time.monotonic() - started
    rng = random.Random(seed)
    counts = {"old": 0, "new": 0, "neither": 0, "with_leftovers": 0}
    for _ in range(kills):
        place = small.copied(original, folder / "index")
        wait = rng.uniform(0, 1.5 * seconds)
        child = os.fork()
        if child == 0:
            Index.open(place, device="cpu").add(corpora[2])
            time.sleep(60)  # done: the kill comes all the same
            os._exit(0)
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen = small.signature(place)
        counts["old" if seen == old else "new" if seen == new else "neither"] += 1
        counts["with_leftovers"] += bool(Store(place).leftovers())
        index = Index.open(place, device="cpu")
        index.delete(corpora[0].documents[0].docid)
        assert index.verify().problems == [], index.verify().problems
    return {"kills": kills, **counts, "add_seconds": round(seconds, 3), "seed": seed}


if __name__ == "__main__":
    main()
