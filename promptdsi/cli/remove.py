"""`promptdsi delete`, `undelete`, `purge` and `rollback`: hide, show, erase, go back."""

from __future__ import annotations

from typing import Annotated

import typer

from promptdsi.cli.console import Json, Quiet, documents, print_json, say
from promptdsi.cli.learn import IndexPath

Docids = Annotated[list[str], typer.Argument(help="Ids of documents.", metavar="DOCID…")]


def delete(index: IndexPath, docids: Docids, quiet: Quiet = False, json: Json = False) -> None:
    """Hide documents: no search finds them any more. Their bytes stay until `purge`."""
    from promptdsi.index import removal
    from promptdsi.index.store import Store

    made = removal.delete(Store(index), docids)
    if json:
        print_json({"generation": made.number, "deleted": made.event["documents"]})
    say(f"{index}: generation {made.number}: {documents(made.event['documents'])} deleted; `undelete` shows them again", quiet=quiet)


def undelete(index: IndexPath, docids: Docids, quiet: Quiet = False, json: Json = False) -> None:
    """Show deleted documents again."""
    from promptdsi.index import removal
    from promptdsi.index.store import Store

    made = removal.undelete(Store(index), docids)
    if json:
        print_json({"generation": made.number, "undeleted": made.event["documents"]})
    say(f"{index}: generation {made.number}: {documents(made.event['documents'])} shown again", quiet=quiet)


def purge(
    index: IndexPath,
    docids: Annotated[list[str] | None, typer.Argument(help="Ids of documents (default: all deleted ones).", metavar="[DOCID…]")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Erase the bytes of documents from every generation: text, id, queries kept, row. It cannot be undone.

    What the encoder or prompts absorbed while they learned is not unlearned.
    """
    from promptdsi.index.purge import NothingToPurge
    from promptdsi.index.purge import purge as erase
    from promptdsi.index.store import Store

    try:
        made = erase(Store(index), docids or None)
    except NothingToPurge as nothing:  # as asked: nothing deleted is left
        if json:
            print_json({"generation": Store(index).current(), "purged": 0})
        return say(str(nothing), quiet=quiet)
    if json:
        print_json({"generation": made.number, "purged": made.event["documents"]})
    say(
        f"{index}: generation {made.number}: {documents(made.event['documents'])} erased from every generation; "
        "what the encoder or prompts absorbed is not unlearned",
        quiet=quiet,
    )


def rollback(
    index: IndexPath,
    to: Annotated[int | None, typer.Option("--to", help="Generation to go back to (default: the one before).")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Go back to an earlier generation, by a new one that equals it; nothing is lost."""
    from promptdsi.index import removal
    from promptdsi.index.store import Store

    made = removal.rollback(Store(index), to)
    if json:
        print_json({"generation": made.number, "to": made.event["to"], "documents": made.documents})
    say(f"{index}: generation {made.number} is generation {made.event['to']} again: {documents(made.documents)}", quiet=quiet)
