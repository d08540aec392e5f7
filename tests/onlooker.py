"""A process that looks at indexes of strangers by the command line, and how it ended: used by the tests and by `make soak`.

    python tests/onlooker.py        reads lines of JSON, [[words of a command], …], and answers each with a line of JSON

The commands are those a user types, run one after another in a process that has imported everything: the time of a command is its own. Each
has its bounds of processor time and memory, kept by the kernel. `Onlooker` is the other end: a child that hangs or dies, by a signal of its
own or of the kernel's, is replaced, and that is an outcome too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parent.parent
MOST_SECONDS, MOST_MIB = 5, 1024  # of the processor and of memory, for one command
# What a command may end with: the first two are right. `memory`: it took, or asked for, more than it may; `escape`: it printed a control
# character, which a terminal obeys.
OUTCOMES = ("answer", "sentence", "traceback", "hang", "memory", "crash", "escape")
REFUSED = re.compile("MemoryError|[Uu]nable to allocate|memory of this machine|bad.?alloc|[Cc]annot allocate|out of memory")
MAY_BE_WRONG = ("add", "eval", "rollback", "sync", "teach", "tune", "undelete", "upgrade")  # exit code 2: there is nothing to go back to, …


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
                    name, code = commands[len(looks)][0], self._child.wait() if ready else None
                    self.stop()
                    hung = code in (None, -signal.SIGXCPU)
                    return [*looks, Look(name, "hang" if hung else "crash", f"exit code {code}")]
                *lines, part = (part + received).split(b"\n")
                looks += [Look(*json.loads(line)) for line in lines]
        return looks


def run(command: list[str]) -> Look:
    """Run a command of `promptdsi` in this process."""
    from promptdsi.cli.console import CONTROLS

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    out, error, started, outcome = io.StringIO(), io.StringIO(), time.process_time(), "traceback"
    with _bounds(started):
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                _commands()(command, prog_name="promptdsi")
            outcome, says = "answer", ""
        except SystemExit as stop:
            outcome, says = _outcome(command[0], stop.code, error.getvalue().strip())
        except BaseException:
            says = traceback.format_exc()
    seconds, peak = time.process_time() - started, _memory("VmHWM") / 1024
    if outcome == "sentence" and REFUSED.search(says):
        outcome = "memory"
    elif outcome in ("answer", "sentence") and CONTROLS.search(out.getvalue() + error.getvalue()):
        outcome = "escape"
    elif outcome in ("answer", "sentence"):
        outcome = "hang" if seconds > MOST_SECONDS else "memory" if peak > MOST_MIB else outcome
    return Look(command[0], outcome, says[-3000:], seconds, peak)


def _outcome(name: str, code: object, says: str) -> tuple[str, str]:
    """The outcome of a command by its exit code and what it printed on standard error."""
    last = says.splitlines()[-1] if says else ""
    if not code:
        return "answer", ""
    if (code == 1 or (code == 2 and name in MAY_BE_WRONG)) and last.startswith("error: ") and len(last) < 6000:
        return "sentence", says
    return "traceback", f"exit code {code}: {says}"


@contextlib.contextmanager
def _bounds(started: float) -> Iterator[None]:
    """Let the kernel end this process, or refuse it memory, where a command takes more than it may."""
    for what, most in (
        (resource.RLIMIT_CPU, int(started) + MOST_SECONDS + 2),
        (resource.RLIMIT_DATA, _memory("VmData") * 1024 + (1 << 30)),
    ):
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
    try:
        yield
    finally:
        for what in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
            resource.setrlimit(what, (resource.RLIM_INFINITY, resource.getrlimit(what)[1]))


def _memory(field: str) -> int:
    """A figure of this process in KiB."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0])


@functools.cache
def _commands() -> Any:
    """The command line, as `promptdsi` builds it at its start."""
    import typer

    import promptdsi.index.effort
    import promptdsi.index.sync
    import promptdsi.index.teach  # noqa: F401
    from promptdsi.cli.main import app

    return typer.main.get_command(app)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _commands()
    for line in sys.stdin:
        for command in json.loads(line):
            print(json.dumps(run(command)), file=answers, flush=True)


if __name__ == "__main__":
    main()
