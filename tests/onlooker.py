"""A process that looks at indexes of strangers by the command line, and how it ended: used by the tests and by `make soak`.

    python tests/onlooker.py        reads lines of JSON, [[words of a command], …], and answers each with a line of JSON

`Onlooker` is the other end: a child that hangs or dies is replaced, and that is an outcome too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import selectors
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).parent.parent
ADDRESSES = 6 << 30  # bytes: libraries reserve far more than they use
OUTCOMES = ("answer", "sentence", "traceback", "hang", "crash")


class Look(NamedTuple):
    """How one command on an index ended, what it said, and what it took: seconds of the processor, MiB at its peak."""

    command: str
    outcome: str
    says: str = ""
    seconds: float = 0.0
    mib: float = 0.0


class Onlooker:
    """The parent's end. A context manager."""

    def __init__(self, *, seconds: float = 60.0) -> None:
        self.seconds = seconds  # of the clock, for all commands of a request; other processes may take most of it
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._child = None

    def look(self, *commands: list[str]) -> list[Look]:
        """Run commands, one after the other, in the child."""
        if self._child is None:
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(Path(__file__).resolve())]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment)
        assert self._child.stdin is not None and self._child.stdout is not None
        deadline, looks, part = time.monotonic() + self.seconds, list[Look](), b""
        self._child.stdin.write(json.dumps(commands).encode() + b"\n")
        self._child.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while len(looks) < len(commands):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                received = os.read(self._child.stdout.fileno(), 1 << 16) if ready else b""
                if not received:
                    name = commands[len(looks)][0]
                    code = self._child.wait() if ready else None
                    self.stop()
                    return [*looks, Look(name, "crash", f"exit code {code}") if ready else Look(name, "hang", f"{self.seconds:g} s")]
                *lines, part = (part + received).split(b"\n")
                looks += [Look(*json.loads(line)) for line in lines]
        return looks


def run(command: list[str]) -> Look:
    """Run a command of `promptdsi` in this process."""
    from promptdsi.cli.main import app

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    out, error, started, outcome = io.StringIO(), io.StringIO(), time.process_time(), "traceback"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            app(command, prog_name="promptdsi")
        outcome, says = "answer", ""
    except SystemExit as stop:
        says = error.getvalue().strip()
        last = says.splitlines()[-1] if says else ""
        if not stop.code:
            outcome, says = "answer", ""
        elif stop.code == 1 and last.startswith("error: ") and len(last) < 6000:
            outcome = "sentence"
        else:
            says = f"exit code {stop.code}: {says}"
    except BaseException:
        says = traceback.format_exc()
    seconds = time.process_time() - started
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    return Look(command[0], outcome, says[-3000:], seconds, peak)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        for command in json.loads(line):
            print(json.dumps(run(command)), file=answers, flush=True)


if __name__ == "__main__":
    main()
