"""`promptdsi backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import IndexPath, Output, open_index
from promptdsi.wording import counted

BackupPath = Annotated[Path, typer.Argument(help="Folder of the backup.", metavar="DIR")]


def backup(index: IndexPath, folder: BackupPath, output: Output) -> None:
    """Copy an index, all its generations, while it is in use. Again, only what is new is copied, and what was purged is removed."""
    report = open_index(index).backup(folder, progress=output.progress)
    copied = f"{counted(report.copied, 'file')} copied ({report.copied_bytes / 1e6:,.1f} MB)"
    sentence = f"{folder}: generation {report.generation}, {counted(report.blobs, 'blob')}, {report.bytes / 1e6:,.1f} MB; {copied}"
    output.result(report._asdict(), sentence)


def restore(
    folder: BackupPath, index: Annotated[Path, typer.Argument(help="New or empty folder for the index.", metavar="INDEX")], output: Output
) -> None:
    """Make an index from a backup, in a new or empty folder. Every file is verified first."""
    from promptdsi.index.index import Index

    generation = Index.restore(folder, index, progress=output.progress)
    output.result({"generation": generation}, f"{index}: generation {generation} restored")
