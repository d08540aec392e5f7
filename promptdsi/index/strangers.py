"""An index from somebody else is looked at in a child process first, with bounds on time and memory and no way to write.

What is read of any index is checked for type and range (`index/file_checks.py`); what libraries in C and Rust then make of it, tokenizer,
encoder and database, cannot be checked from outside. Should one of them crash or run away, it is the child that ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from promptdsi.corpus.confined import child_environment, confine
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.index.results import Verification
from promptdsi.index.store import Store
from promptdsi.index.verify import verify
from promptdsi.progress import Progress, silent

SECONDS, BYTES_PER_SECOND = 60.0, 20_000_000  # for any index, and for its size
MEMORY, COPIES = 4 << 30, 3  # bytes for any index, and how often its size: files are mapped, and rows copied
OPEN_FILES = 1024
MOST_ANSWERED = 1 << 20  # characters that are read of an answer
QUERIES = ["what is this about", "Ünïcödé 東京 \u2581 ### [SEP] \U0001f600", "a" * 2000]
PROGRAM = "from promptdsi.index.strangers import main; main()"


def is_foreign(folder: Path) -> bool:
    """Whether an index belongs to another user than the one who runs this, or root, who could change the program as well."""
    try:
        return hasattr(os, "geteuid") and folder.stat().st_uid not in (os.geteuid(), 0)
    except OSError:
        return False  # there is no index, which opening it says


def screen(folder: Path, at: int | str | None = None, trust: bool | None = False) -> list[str]:
    """Open and search an index in a child process unless it is to be trusted; DataError if that fails, else what was checked.

    Where `trust` is not said, an index that belongs to another user is not trusted.
    """
    if trust or (trust is None and not is_foreign(folder)):
        return []
    answer = _run_child(folder, {"folder": str(folder.absolute()), "at": at})
    return list(answer["checks"])


def verify_any(store: Store, *, untrusted: bool = False, progress: Progress = silent) -> Verification:
    """Verify an index; one from a stranger in a child process, which also opens and searches it."""
    if untrusted or is_foreign(store.folder):
        return Verification(**_run_child(store.folder, {"folder": str(store.folder.absolute()), "complete": True}))
    return verify(store, progress=progress)


def _run_child(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    # What lies on the disk: a hole may say any size, and the bounds must not grow with it.
    status = [path.lstat() for path in folder.rglob("*")]
    size = sum(min(each.st_size, 512 * getattr(each, "st_blocks", each.st_size)) for each in status)
    seconds, memory = SECONDS + size / BYTES_PER_SECOND, MEMORY + COPIES * size
    command = [sys.executable, "-P", "-c", PROGRAM, json.dumps(request | {"memory": memory})]
    try:
        # Its messages are of no use: what a library prints at a broken file is not for people.
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"takes more than {seconds:.0f} s to look at: do not use it", path=folder) from None
    try:
        answer: dict[str, Any] = json.loads(ended.stdout[-MOST_ANSWERED:])
    except ValueError:
        how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
        raise DataError(f"ends the process that looks at it ({how}): do not use it", path=folder) from None
    if "problem" in answer:
        raise PromptDSIError(answer["problem"])
    return answer


def look(folder: str, at: int | str | None = None, complete: bool = False) -> dict[str, Any]:
    """What the child does: open every file of the generation, load tokenizer and encoder, search with explanations, read all metadata."""
    from promptdsi.index.index import Index

    index = Index.open(folder, at=at, engine="onnx", device="cpu", threads=1, trust=True)
    index.search(QUERIES, k=10, explain=True)
    index.facets()
    checks = [
        "every file is a regular file of bounded size, and every manifest, header and list of ids has the types and ranges it should",
        "the databases hold one plain table of documents each, and nothing that computes",
        f"tokenizer and encoder loaded and {len(QUERIES)} searches run in a process with bounded time and memory",
    ]
    return verify(index.store)._replace(checks=checks)._asdict() if complete else {"checks": checks}


def main() -> None:
    """The child process."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    confine(request.pop("memory"), OPEN_FILES)
    try:
        answer = look(**request)
    except PromptDSIError as error:
        answer = {"problem": str(error)}
    except MemoryError:
        answer = {"problem": f"{request['folder']}: takes more memory than an index of its size should: do not use it"}
    print(json.dumps(answer))
