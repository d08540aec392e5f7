"""`promptdsi delete`, `undelete`, `purge` and `rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from promptdsi.cli.console import IndexPath, Json, Quiet, count_documents, print_json, say

Docids = Annotated[list[str], typer.Argument(help="Ids of documents.", metavar="DOCID…")]


def delete(index: IndexPath, docids: Docids, quiet: Quiet = False, json: Json = False) -> None:
    """Hide documents: no search retrieves them any more. Their bytes stay until `purge`."""
    from promptdsi.index.index import Index

    manifest = Index.open(index, check=False).delete(docids)
    count = manifest.event["documents"]
    if json:
        print_json({"generation": manifest.number, "deleted": count})
    say(f"{index}: generation {manifest.number}: {count_documents(count)} deleted; `undelete` shows them again", quiet=quiet)


def undelete(index: IndexPath, docids: Docids, quiet: Quiet = False, json: Json = False) -> None:
    """Show deleted documents again."""
    from promptdsi.index.index import Index

    manifest = Index.open(index, check=False).undelete(docids)
    count = manifest.event["documents"]
    if json:
        print_json({"generation": manifest.number, "undeleted": count})
    say(f"{index}: generation {manifest.number}: {count_documents(count)} shown again", quiet=quiet)


def purge(
    index: IndexPath,
    docids: Annotated[list[str] | None, typer.Argument(help="Ids of documents (default: all deleted ones).", metavar="[DOCID…]")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Erase the bytes of documents from every generation: text, id, stored queries, row. It cannot be undone.

    What the encoder or prompts learned from them is not unlearned.
    """
    from promptdsi.index.index import Index
    from promptdsi.index.results import NothingToPurge

    opened = Index.open(index, check=False)
    try:
        manifest = opened.purge(docids or None)
    except NothingToPurge as nothing:  # no error: no deleted document is left
        if json:
            print_json({"generation": opened.generation, "purged": 0})
        return say(str(nothing), quiet=quiet)
    count = manifest.event["documents"]
    if json:
        print_json({"generation": manifest.number, "purged": count})
    erased = f"{count_documents(count)} erased from every generation"
    say(f"{index}: generation {manifest.number}: {erased}; what the encoder or prompts learned is not unlearned", quiet=quiet)


def rollback(
    index: IndexPath,
    to: Annotated[int | None, typer.Option("--to", help="Generation to go back to (default: the one before).")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Go back to an earlier generation, by a new one that equals it; nothing is lost."""
    from promptdsi.index.index import Index

    manifest = Index.open(index, check=False).rollback(to)
    target, documents = manifest.event["to"], manifest.documents
    if json:
        print_json({"generation": manifest.number, "to": target, "documents": documents})
    say(f"{index}: generation {manifest.number} is generation {target} again: {count_documents(documents)}", quiet=quiet)
