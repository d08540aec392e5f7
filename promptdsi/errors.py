"""Errors that a user can fix: each is one sentence that says what, where, and what to do.

The command line prints them without a traceback: `UsageError` ends with exit code 2, every other `PromptDSIError` with 1.
"""

from __future__ import annotations

from pathlib import Path


class PromptDSIError(Exception):
    """A problem with the user's data, index or machine."""


class UsageError(PromptDSIError):
    """The call itself is wrong (exit code 2)."""


class OfflineError(PromptDSIError):
    """Something has to be downloaded and cannot be, or must not be."""


class DataError(PromptDSIError):
    """A problem in a file, with path, line and column.

    Examples
    --------
    >>> print(DataError('no "_id"', path="corpus.jsonl", line=3))
    corpus.jsonl:3: no "_id"
    """

    def __init__(self, problem: str, *, path: str | Path, line: int | None = None, column: int | None = None) -> None:
        self.problem, self.path, self.line, self.column = problem, Path(path), line, column
        super().__init__(problem)

    def __str__(self) -> str:
        location = [str(self.path)] + [str(number) for number in (self.line, self.column) if number is not None]
        return f"{':'.join(location)}: {self.problem}"
