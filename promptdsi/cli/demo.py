"""`promptdsi demo`: the story on the embedded corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import Json, Quiet, print_json, print_table, say
from promptdsi.cli.data import show
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.corpus.streams import Stream


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the demo stream to.")] = Path("demo-stream"),
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write the demo stream and show what is in it."""
    stream = build_stream("demo", Request())
    manifest = stream.write(output)
    if json:
        print_json(manifest)
        return
    show(stream)
    print_table("documents per subject", _subjects(stream), total=True)
    for corpus in (stream.corpora[0], stream.corpora[3]):
        document = corpus.documents[0]
        print(f"{corpus.name}  {document.docid}\n    {document.title}: {document.text}\n")
        for split in ("train", "dev", "test"):
            for pair in corpus.pairs(split):
                if pair.docid == document.docid:
                    print(f"    {split:<5} {pair.query.text}")
        print()
    say(f"written to {output}; next: promptdsi queries {output}/d1", quiet=quiet)


def _subjects(stream: Stream) -> list[dict[str, str | int]]:
    """One row per subject, one column per corpus: the new subject is seen at once."""
    subjects = sorted({document.metadata["subject"] for corpus in stream.corpora for document in corpus.documents})
    rows: list[dict[str, str | int]] = []
    for subject in subjects:
        row: dict[str, str | int] = {"subject": subject}
        for corpus in stream.corpora:
            row[corpus.name] = sum(document.metadata["subject"] == subject for document in corpus.documents)
        rows.append(row)
    return [*rows, {"subject": "all", **{corpus.name: len(corpus) for corpus in stream.corpora}}]
