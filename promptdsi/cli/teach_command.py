"""`promptdsi teach`: let documents learn queries that should have retrieved them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.add_command import MaxDrift
from promptdsi.cli.console import IndexPath, On, Output, merged_corpora, open_index, print_json, strip_control_chars
from promptdsi.errors import UsageError
from promptdsi.wording import counted


def teach(
    index: IndexPath,
    query: Annotated[str | None, typer.Argument(help="A query.", metavar="QUERY")] = None,
    docid: Annotated[
        str | None, typer.Argument(help="The document it should find; a file's id is its path inside its folder.", metavar="DOCID")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--from", help="Many at once: a file of lines QUERY<tab>DOCID.", metavar="FILE.tsv")] = None,
    max_drift: MaxDrift = None,
    on: On = None,
    output: Output,
) -> None:
    """Teach an index which document is right for a query. No other document's row or words change, and `rollback` undoes it."""
    if (file is None) == (query is None or docid is None):
        raise UsageError("give a query and a docid, or --from FILE with one of each in a line")
    corrections = [(query or "", docid or "")] if file is None else _read(file)
    report = open_index(index, on=on).teach(corrections, max_drift=max_drift)
    if output.json:
        return print_json(asdict(report) | {"taught": [taught._asdict() for taught in report.taught]})
    for taught in report.taught:
        output.say(strip_control_chars(f"rank {taught.before} → {taught.after}: {taught.docid} for “{taught.query}”"))
    if report.probes:
        output.say(f"Hits@10 on {counted(report.probes, 'probe query')} fell by {100 * report.fall:.1f} points")
    learned, pronoun = counted(len(report.taught), "correction"), "it" if len(report.taught) == 1 else "them"
    output.say(f"{index}: generation {report.generation}: {learned} learned; `promptdsi rollback` undoes {pronoun}")
    for sentence in merged_corpora(report):
        output.say(sentence)


def _read(path: Path) -> list[tuple[str, str]]:
    from promptdsi.corpus.reading import decode, raw_lines

    lines = [(line.number, decode(line, path)) for line in raw_lines(path) if line.raw.strip()]
    if wrong := [number for number, line in lines if line.count("\t") != 1]:
        raise UsageError(f"{path}:{wrong[0]}: expected a query, a tab and a docid")
    return [(query, docid.strip()) for query, _, docid in (line.partition("\t") for _, line in lines)]
