"""A process that is asked by a line of JSON on its standard input and answers by one on its standard output."""

from __future__ import annotations

import json
import subprocess
from typing import Any


class LineProcess:
    """A system that is measured in a process of its own; `first` is what it says once it is ready."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self._read()

    def request(self, message: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a system that is measured has died")
        return json.loads(line)
