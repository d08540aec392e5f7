"""Files of strangers are read in a child process, with bounds on time and memory and no way to write: a hostile file harms nobody else.

    python -m promptdsi.corpus.confined         the child: reads requests from standard input, answers on standard output

A request is a line of JSON (`suffix`, `size`) and the bytes of the file; an answer is a line of JSON, an `Extract` or the `problem`. A
child serves many files, one after another; one that dies or takes too long is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from promptdsi.corpus.extract import MAX_CHARACTERS, Extract
from promptdsi.discovery import modules_of

SECONDS = 60.0  # for one file
MEMORY = 2 << 30
OPEN_FILES = 64
MOST_ANSWERED = 16 * MAX_CHARACTERS  # bytes: a character takes up to twelve in JSON


@functools.cache
def file_kinds() -> dict[str, ModuleType]:
    """The kinds of files, by suffix."""
    from promptdsi.corpus import file_kinds as package

    return {suffix: kind for kind in modules_of(package).values() for suffix in kind.SUFFIXES}


class ConfinedReader:
    """Reads files in a child process, started when first needed. A context manager."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def extract(self, suffix: str, contents: bytes) -> Extract:
        """What a file holds; ValueError says why it cannot be read."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        child, deadline, answer = self._child, time.monotonic() + self.seconds, b""
        assert child is not None and child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps({"suffix": suffix, "size": len(contents)}).encode() + b"\n" + contents)
            child.stdin.flush()
            answer = self._answer(child, deadline)
        if not answer.endswith(b"\n"):
            in_time = time.monotonic() < deadline
            self._stop()
            raise ValueError("cannot be read: its reader crashed on it" if in_time else f"takes more than {self.seconds:g} s to read")
        record: dict[str, Any] = json.loads(answer)
        if "problem" in record:
            raise ValueError(record["problem"])
        return Extract(**record)

    def _start(self) -> None:
        self._stop()
        # -P: nothing is imported from the working directory, which may be the folder that is read.
        command = [sys.executable, "-P", "-m", "promptdsi.corpus.confined"]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL  # what parsers print is of no use, and a file could not take it
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=child_environment())

    def _answer(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        """A line of the child; what there is of it if it does not end in time."""
        assert child.stdout is not None
        parts, size = [], 0
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while size <= MOST_ANSWERED and selector.select(max(0.0, deadline - time.monotonic())):
                part = os.read(child.stdout.fileno(), 1 << 16)
                parts.append(part)
                size += len(part)
                if not part or part.endswith(b"\n"):
                    break
        return b"".join(parts)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._child = None


def child_environment() -> dict[str, str]:
    """The child imports the package from where this process has it, whatever its working directory; one thread is enough for it."""
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def confine(memory: int = MEMORY, files: int = OPEN_FILES) -> None:
    """Bound what this process may use, for good."""
    try:
        import resource
    except ImportError:  # Windows has no such bounds; the time of each file is bounded everywhere
        return
    bounds = {resource.RLIMIT_AS: memory, resource.RLIMIT_NOFILE: files, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for what, most in bounds.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # a system that does not know this bound
            resource.setrlimit(what, (most, most))


def answer(suffix: str, contents: bytes) -> dict[str, Any]:
    """The answer to one request."""
    try:
        extract: Extract = file_kinds()[suffix].extract(contents)
        if len(extract.text) > MAX_CHARACTERS:
            raise ValueError(f"holds more than {MAX_CHARACTERS >> 20} million characters; split it into documents")
    except MemoryError:
        return {"problem": f"takes more than {MEMORY >> 30} GiB of memory to read"}
    except RecursionError:
        return {"problem": "is nested too deeply"}
    except ValueError as error:
        return {"problem": " ".join(str(error).split())[:300] or "cannot be read"}
    except Exception as error:  # whatever a parser raises at a broken file, the file is to blame
        return {"problem": f"is broken or not what its name says ({type(error).__name__}: {' '.join(str(error).split())[:200]})"}
    return extract._asdict() | {"metadata": dict(extract.metadata)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent, which gets it too, decides
    confine()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a parser prints must not be taken for an answer
    while line := requests.readline():
        request = json.loads(line)
        record = answer(request["suffix"], requests.read(request["size"]))
        answers.write(json.dumps(record).encode("utf-8", "replace") + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
