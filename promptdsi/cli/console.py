"""How commands speak: data on standard output, messages and progress on standard error."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.reading import ReadNotes
from promptdsi.engine.threads import cores
from promptdsi.errors import UsageError
from promptdsi.progress import Progress, shown, silent

if TYPE_CHECKING:
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages, no progress.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network.")]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # what every library that draws takes
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.", **SEEDS)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps; a search takes the processor unless told otherwise.")]
Engine = Annotated[
    str,
    typer.Option("--engine", help="What encodes queries: onnx, int8 (quicker, a little off) or torch.", metavar="auto|onnx|int8|torch"),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Processor threads to compute with, one a core at most.")]
OnError = Annotated[
    str, typer.Option("--on-error", help="stop at the first bad record, or skip bad records and list them.", metavar="stop|skip")
]
MaxUnknown = Annotated[int, typer.Option("--max-unknown", min=0, help="Judgements that may name unknown queries or documents.")]


# What would move a terminal's cursor, recolour or retitle it, or turn its writing around; ends of lines and tabs may stay.
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def harmless(text: str) -> str:
    r"""Somebody's text as a terminal may have it.

    Examples
    --------
    >>> harmless("plain, \x1b[31mred")
    'plain, �[31mred'
    """
    return CONTROLS.sub("\ufffd", text)


def say(message: str, *, quiet: bool = False) -> None:
    """A message for the person, on standard error."""
    if not quiet:
        print(harmless(message), file=sys.stderr, flush=True)


@contextlib.contextmanager
def said(notes: ReadNotes, *, quiet: bool) -> Iterator[None]:
    """Say what a reader noticed; if reading fails, at least what it had skipped until then."""
    try:
        yield
    except BaseException:
        if notes.skipped:
            _say_all(notes, quiet)
        raise
    _say_all(notes, quiet)


def _say_all(notes: ReadNotes, quiet: bool) -> None:
    for sentence in notes.sentences():
        say(sentence, quiet=quiet)


def documents(count: int) -> str:
    """A number of documents in words.

    Examples
    --------
    >>> documents(1), documents(2000)
    ('1 document', '2,000 documents')
    """
    return f"{count:,} document" + ("" if count == 1 else "s")


def read_corpus(path: Path, *, on_error: str, max_unknown: int, quiet: bool) -> Corpus:
    """A corpus from the command line, with everything worth saying about it said."""
    if on_error not in ("stop", "skip"):
        raise UsageError(f"--on-error {on_error}: expected stop or skip")
    notes = ReadNotes()
    with said(notes, quiet=quiet):
        return Corpus.read(path, on_error=on_error, max_unknown=max_unknown, notes=notes)


def progress_for(quiet: bool) -> Progress:
    return silent if quiet else shown


def print_json(value: Any) -> None:
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    dumped = json.dumps(value, ensure_ascii=not unicode)
    print(CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", dumped), flush=True)  # the same data, and nothing a terminal obeys


def print_table(title: str, rows: Sequence[dict[str, Any]], *, total: bool = False) -> None:
    """Rows as a table; numbers to the right, the last row set apart when it is a total."""
    from rich.console import Console

    # Without a terminal, width is what the table needs: a file or a pipe has no right margin.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table_of(title, rows, total=total))


def table_of(title: str, rows: Sequence[dict[str, Any]], *, total: bool = False) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(harmless(title)) or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column, value in rows[0].items() if rows else ():
        table.add_column(column, justify="right" if isinstance(value, int | float) else "left")
    for number, row in enumerate(rows):
        last = total and number == len(rows) - 2
        cells = (row[column] for column in rows[0])
        table.add_row(*(f"{one:,}" if isinstance(one, int) else escape(harmless(str(one))) for one in cells), end_section=last)
    return table


def use_threads(threads: int | None) -> None:
    """Set the number of compute threads, where a command computes with torch. More than cores only wait for each other."""
    if threads is not None:
        import torch

        torch.set_num_threads(min(threads, cores()))
