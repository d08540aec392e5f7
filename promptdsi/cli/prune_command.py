"""`promptdsi prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from promptdsi.cli.console import IndexPath, Output, open_index
from promptdsi.wording import agreeing, counted


def prune(
    index: IndexPath,
    keep: Annotated[int | None, typer.Option("--keep", min=1, metavar="N", help="Keep the newest N generations.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Keep generations younger than this.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Also merge small corpora into one: the index opens faster.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be dropped.")] = False,
    *,
    output: Output,
) -> None:
    """Drop old generations and the files that only they need. The newest, tagged ones and the one `rollback` leads to stay."""
    report = open_index(index).prune(keep=keep, older_than=older_than, merge=merge, dry_run=dry_run, progress=output.progress)
    would = "would be " if dry_run else ""
    dropped = f"{counted(len(report.pruned), 'generation')} {would}dropped ({report.bytes / 1e6:,.1f} MB), {len(report.left):,} left"
    merged = f"; {agreeing(report.merged, f'small corpora {would}merged')}" if report.merged else ""
    sentence = f"{index}: {dropped}{merged}" if report.pruned or report.merged else f"{index}: nothing to drop"
    output.result(report._asdict() | {"dry_run": dry_run}, sentence)
