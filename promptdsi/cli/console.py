"""What commands share: options, and output: data on standard output, messages and progress on standard error."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.corpus.corpus import Corpus, ReadNotes
from promptdsi.errors import UsageError
from promptdsi.progress import Progress, shown, silent

if TYPE_CHECKING:
    from rich.table import Table

    from promptdsi.index.index import Index

Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages, no progress.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network.")]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # what every random generator accepts
Seed = Annotated[int, typer.Option("--seed", help="Random seed.", **SEEDS)]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda or mps. `auto` trains on an accelerator if there is one and searches on the CPU.")
]
Engine = Annotated[
    str,
    typer.Option("--engine", help="Query encoder: onnx, int8 (faster, approximate) or torch.", metavar="auto|onnx|int8|torch"),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Number of CPU threads (default: one per core).")]
OnError = Annotated[
    str, typer.Option("--on-error", help="stop at the first bad record, or skip bad records and list them.", metavar="stop|skip")
]
IndexPath = Annotated[Path, typer.Argument(help="Folder of the index.", metavar="INDEX")]
CorpusPath = Annotated[Path, typer.Argument(help="BEIR folder, .jsonl, .tsv, or a folder of text files.", metavar="CORPUS")]
At = Annotated[int | None, typer.Option("--at", help="Search this generation instead of the newest.", metavar="GENERATION")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the corpus in the index (default: its folder's).")]
KeepProbes = Annotated[int, typer.Option("--keep-probes", min=0, help="Store this many dev queries, to measure drift with later.")]
KeepQueries = Annotated[bool, typer.Option("--keep-queries", help="Store the train queries, for search --explain.")]
MaxUnknown = Annotated[int, typer.Option("--max-unknown", min=0, help="Number of judgements that may name unknown queries or documents.")]


# Characters that move a terminal's cursor, change its colors or title, or reverse its text; line ends and tabs may stay.
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def strip_control_chars(text: str) -> str:
    r"""Text that is safe to print on a terminal.

    Examples
    --------
    >>> strip_control_chars("plain, \x1b[31mred")
    'plain, �[31mred'
    """
    return CONTROLS.sub("\ufffd", text)


def say(message: str, *, quiet: bool = False) -> None:
    """Print a message on standard error."""
    if not quiet:
        print(strip_control_chars(message), file=sys.stderr, flush=True)


@contextlib.contextmanager
def print_notes(notes: ReadNotes, *, quiet: bool) -> Iterator[None]:
    """Print what a reader noticed; if reading fails, only if it skipped something before."""
    complete = False
    try:
        yield
        complete = True
    finally:
        for sentence in notes.sentences() if complete or notes.skipped else ():
            say(sentence, quiet=quiet)


def count_documents(count: int) -> str:
    """A number of documents in words.

    Examples
    --------
    >>> count_documents(1), count_documents(2000)
    ('1 document', '2,000 documents')
    """
    return f"{count:,} document" + ("" if count == 1 else "s")


def read_corpus(path: Path, *, on_error: str, max_unknown: int, quiet: bool) -> Corpus:
    """Read a corpus, and print what the reader noticed."""
    if on_error not in ("stop", "skip"):
        raise UsageError(f"--on-error {on_error}: expected stop or skip")
    notes = ReadNotes()
    with print_notes(notes, quiet=quiet):
        return Corpus.read(path, on_error=on_error, max_unknown=max_unknown, notes=notes)


def progress_for(quiet: bool) -> Progress:
    return silent if quiet else shown


def open_index(path: Path, **options: Any) -> Index:
    """Open an index, by default without verifying checksums; imported here, so that --help stays fast."""
    from promptdsi.index.index import Index

    return Index.open(path, **({"check": False} | options))


def print_result(fields: dict[str, Any], sentence: str, *, quiet: bool, json: bool) -> None:
    """What a command did: fields as JSON on standard output if wanted, and a sentence on standard error."""
    if json:
        print_json(fields)
    say(sentence, quiet=quiet)


def print_json(value: Any) -> None:
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    dumped = json.dumps(value, ensure_ascii=not unicode)
    print(CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped), flush=True)  # the same data, safe for a terminal


def print_table(title: str, rows: Sequence[dict[str, Any]], *, total: bool = False) -> None:
    """Print rows as a table, numbers right-aligned; with `total` the last row is separated."""
    from rich.console import Console

    # Without a terminal, width is what the table needs: a file or a pipe has no right margin.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table_of(title, rows, total=total))


def table_of(title: str, rows: Sequence[dict[str, Any]], *, total: bool = False) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(strip_control_chars(title)) or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column, value in rows[0].items() if rows else ():
        table.add_column(column, justify="right" if isinstance(value, int | float) else "left")
    for number, row in enumerate(rows):
        values = [row[column] for column in rows[0]]
        texts = [f"{value:,}" if isinstance(value, int) else escape(strip_control_chars(str(value))) for value in values]
        table.add_row(*texts, end_section=total and number == len(rows) - 2)
    return table


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads of torch; more than cores would only wait for each other."""
    if threads is not None:
        import torch

        from promptdsi.engine.graph import cores

        torch.set_num_threads(min(threads, cores()))
