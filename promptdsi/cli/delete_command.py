"""`promptdsi delete`, `undelete`, `purge` and `rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from promptdsi.cli.console import IndexPath, Output, count_documents, open_index

Docids = Annotated[list[str], typer.Argument(help="Ids of documents.", metavar="DOCID…")]


def delete(index: IndexPath, docids: Docids, output: Output) -> None:
    """Hide documents: no search retrieves them any more. Their bytes stay until `purge`."""
    manifest = open_index(index).delete(docids)
    count = manifest.event["documents"]
    sentence = f"{index}: generation {manifest.number}: {count_documents(count)} deleted; `undelete` shows them again"
    output.result({"generation": manifest.number, "deleted": count}, sentence)


def undelete(index: IndexPath, docids: Docids, output: Output) -> None:
    """Show deleted documents again."""
    manifest = open_index(index).undelete(docids)
    count = manifest.event["documents"]
    sentence = f"{index}: generation {manifest.number}: {count_documents(count)} shown again"
    output.result({"generation": manifest.number, "undeleted": count}, sentence)


def purge(
    index: IndexPath,
    docids: Annotated[list[str] | None, typer.Argument(help="Ids of documents (default: all deleted ones).", metavar="[DOCID…]")] = None,
    *,
    output: Output,
) -> None:
    """Erase the bytes of documents from every generation: text, id, stored queries, row. It cannot be undone.

    What the encoder or prompts learned from them is not unlearned.
    """
    from promptdsi.index.results import NothingToPurge

    opened = open_index(index)
    try:
        manifest = opened.purge(docids or None)
        count = manifest.event["documents"]
        erased = f"{count_documents(count)} erased from every generation"
        sentence = f"{index}: generation {manifest.number}: {erased}; what the encoder or prompts learned is not unlearned"
    except NothingToPurge as nothing:  # no error: no deleted document is left
        count, sentence = 0, str(nothing)
    output.result({"generation": opened.generation, "purged": count}, sentence)


def rollback(
    index: IndexPath,
    to: Annotated[int | None, typer.Option("--to", help="Generation to go back to (default: the one before the last change).")] = None,
    *,
    output: Output,
) -> None:
    """Take back the last change, and called again the one before: by a new generation that equals an earlier one. A purge stays."""
    manifest = open_index(index).rollback(to)
    target, documents = manifest.event["to"], manifest.documents
    sentence = f"{index}: generation {manifest.number} is generation {target} again: {count_documents(documents)}"
    output.result({"generation": manifest.number, "to": target, "documents": documents}, sentence)
