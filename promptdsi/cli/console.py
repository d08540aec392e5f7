"""What commands share: options, and output: data on standard output, messages and progress on standard error."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from promptdsi.corpus.corpus import Corpus, ReadNotes
from promptdsi.progress import Progress, shown, silent
from promptdsi.wording import agreeing, counted

if TYPE_CHECKING:
    from promptdsi.index.index import Index
    from promptdsi.index.results import Report, SyncReport, TeachReport


def completed(*values: str) -> dict[str, Any]:
    """The keyword of an option by which shells complete its value."""
    return {"autocompletion": lambda incomplete: [value for value in values if value.startswith(incomplete)]}


ENGINES = completed("auto", "onnx", "int8", "torch")
DEVICES = completed("auto", "cpu", "cuda", "mps")
IndexPath = Annotated[Path, typer.Argument(help="Folder of the index.", metavar="INDEX")]
CorpusPath = Annotated[Path, typer.Argument(help="BEIR folder, .jsonl, .tsv, or a folder of files (text, PDF, Word, …).", metavar="CORPUS")]
At = Annotated[str | None, typer.Option("--at", help="Search this generation, a number or a tag, not the newest.", metavar="GENERATION")]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # what every random generator accepts
Seed = Annotated[int, typer.Option("--seed", help="Random seed.", **SEEDS)]
Engine = Annotated[
    str,
    typer.Option("--engine", help="Query encoder: onnx, int8 (faster, approximate) or torch.", metavar="auto|onnx|int8|torch", **ENGINES),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", help="auto, cpu, cuda or mps. `auto` trains on an accelerator if there is one and searches on the CPU.", **DEVICES
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="Cluster whose processes hold the rows, or help `create`: ray://HOST:PORT or ray://local (see docs/cluster.md).",
        metavar="URL",
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Number of CPU threads (default: one per core).")]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages, no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]

# Characters that move a terminal's cursor, change its colors or title, or reverse its text; line ends and tabs may stay.
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


# Records of options: a command with a parameter of such a type has an option for each of its fields (main.py).
@dataclass(frozen=True)
class Output:
    """What a command prints."""

    quiet: Quiet = False
    json: Json = False

    @property
    def progress(self) -> Progress:
        return silent if self.quiet else shown

    def say(self, message: str) -> None:
        """Print a message on standard error."""
        if not self.quiet:
            print(strip_control_chars(message), file=sys.stderr, flush=True)

    def result(self, fields: dict[str, Any], sentence: str) -> None:
        """What a command did: fields as JSON on standard output if wanted, and a sentence on standard error."""
        if self.json:
            print_json(fields)
        self.say(sentence)


@dataclass(frozen=True)
class Runtime:
    """Where a command computes."""

    device: Device = "auto"
    threads: Threads = None
    offline: Offline = False


@dataclass(frozen=True)
class ReadOptions:
    """How strictly a corpus is read."""

    on_error: Annotated[
        Literal["stop", "skip"] | None,
        typer.Option(
            "--on-error",
            help="stop at the first bad record or file, or skip and list them (default: skip files, stop at records).",
            metavar="stop|skip",
        ),
    ] = None
    follow_links: Annotated[bool, typer.Option("--follow-links", help="Follow links in a folder of files.")] = False
    max_unknown: Annotated[
        int, typer.Option("--max-unknown", min=0, help="Number of judgements that may name unknown queries or documents.")
    ] = 0

    @contextlib.contextmanager
    def reader(self, output: Output) -> Iterator[dict[str, Any]]:
        """The keywords of a reader. What it noticed is printed at the end; if it fails, only if it skipped something before."""
        notes, complete = ReadNotes(skip=self.on_error == "skip"), False
        try:
            yield {"on_error": self.on_error, "follow_links": self.follow_links, "max_unknown": self.max_unknown, "notes": notes}
            complete = True
        finally:
            for sentence in notes.sentences() if complete or notes.skipped else ():
                output.say(sentence)

    def read(self, path: Path, output: Output) -> Corpus:
        """Read a corpus, and print what the reader noticed."""
        with self.reader(output) as keywords:
            return Corpus.read(path, **keywords)


def open_index(path: Path, **options: Any) -> Index:
    """Open an index, by default without verifying checksums; imported here, so that --help stays fast."""
    from promptdsi.index.index import Index

    return Index.open(path, **({"check": False} | options))


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads of torch; more than cores would only wait for each other."""
    if threads is not None:
        import torch

        from promptdsi.model.path import cores

        torch.set_num_threads(min(threads, cores()))


def strip_control_chars(text: str) -> str:
    r"""Text that is safe to print on a terminal.

    Examples
    --------
    >>> strip_control_chars("plain, \x1b[31mred")
    'plain, �[31mred'
    """
    return CONTROLS.sub("\ufffd", text)


def shown_folder(folder: str | Path) -> str:
    """A folder as it would be typed here."""
    path = Path(folder)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}/"


def corrections_lost(count: int) -> list[str]:
    """That replaced documents had learned corrections, if any had."""
    texts = "its new text has" if count == 1 else "their new texts have"
    return [f"{counted(count, 'document')} had learned corrections, which {texts} not: teach them again"] if count else []


def merged_corpora(report: Report | SyncReport | TeachReport) -> list[str]:
    """What became of the small corpora that a change added to, if enough had gathered to be merged."""
    if report.not_merged:
        return [f"the small corpora of the index could not be merged: {report.not_merged}"]
    return [agreeing(report.merged, "small corpora of the index were merged, in a generation of its own")] if report.merged else []


def print_json(value: Any) -> None:
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    dumped = json.dumps(value, ensure_ascii=not unicode)
    print(CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped), flush=True)  # the same data, safe for a terminal


def print_table(title: str, rows: Sequence[dict[str, Any]], *, total: bool = False) -> None:
    """Print rows as a table, numbers right-aligned; with `total` the last row is separated."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(strip_control_chars(title)) or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column, value in rows[0].items():
        table.add_column(column, justify="right" if isinstance(value, int | float) else "left")
    for number, row in enumerate(rows):
        texts = [f"{value:,}" if isinstance(value, int) else escape(strip_control_chars(str(value))) for value in row.values()]
        table.add_row(*texts, end_section=total and number == len(rows) - 2)
    # Without a terminal, width is what the table needs: a file or a pipe has no right margin.
    (Console() if sys.stdout.isatty() else Console(width=200)).print(table)
