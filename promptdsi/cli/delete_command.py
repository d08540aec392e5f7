"""`promptdsi delete`, `undelete`, `purge` and `rollback`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import IndexPath, On, Output, open_index, shown_folder
from promptdsi.wording import counted

Docids = Annotated[list[str], typer.Argument(help="Ids of documents; a file's is its path inside its folder.", metavar="DOCID…")]
LISTED = 5  # documents whose files are still there


def delete(index: IndexPath, docids: Docids, *, on: On = None, output: Output) -> None:
    """Delete documents: no search finds them any more. Their bytes stay until `purge`."""
    opened = open_index(index, on=on)
    folders = opened.folders_of(docids)
    manifest = opened.delete(docids)
    count = manifest.event["documents"]
    pronoun = "it" if count == 1 else "them"
    sentence = f"{index}: generation {manifest.number}: {counted(count, 'document')} deleted; `undelete` shows {pronoun} again"
    output.result({"generation": manifest.number, "deleted": count, "still_in_folder": list(folders)}, sentence)
    _warn_of_files(folders, output)


def undelete(index: IndexPath, docids: Docids, *, on: On = None, output: Output) -> None:
    """Bring deleted documents back."""
    manifest = open_index(index, on=on).undelete(docids)
    count = manifest.event["documents"]
    sentence = f"{index}: generation {manifest.number}: {counted(count, 'document')} shown again"
    output.result({"generation": manifest.number, "undeleted": count}, sentence)


def purge(
    index: IndexPath,
    docids: Annotated[list[str] | None, typer.Argument(help="Ids of documents (default: all deleted ones).", metavar="[DOCID…]")] = None,
    *,
    on: On = None,
    output: Output,
) -> None:
    """Erase documents for good. Text, id, stored queries and rows leave every generation; it cannot be undone.

    What the encoder or prompts learned from them is not unlearned.
    """
    from promptdsi.index.results import NothingToPurge

    opened = open_index(index, on=on)
    folders, counts = opened.folders_of(docids or None), {"documents": 0}
    try:
        manifest = opened.purge(docids or None)
        counts = manifest.event
        learned = "; what the encoder or prompts learned is not unlearned" if manifest.trains_model else ""
        sentence = f"{index}: generation {manifest.number}: {describe_erased(counts)} erased from every generation{learned}"
    except NothingToPurge as nothing:  # no error: no deleted document is left
        folders, sentence = {}, str(nothing)
    versions = counts.get("versions", counts["documents"]) + counts.get("replaced", 0)
    fields = {"generation": opened.generation, "purged": counts["documents"], "versions": versions, "still_in_folder": list(folders)}
    output.result(fields, sentence)
    _warn_of_files(folders, output)


def rollback(
    index: IndexPath,
    to: Annotated[
        str | None, typer.Option("--to", help="Generation to go back to, a number or a tag (default: the one before the last change).")
    ] = None,
    *,
    output: Output,
) -> None:
    """Take back the last change, and called again the one before. A new generation is made that equals an earlier one; a purge stays."""
    manifest = open_index(index).rollback(to)
    target, documents = manifest.event["to"], manifest.documents
    sentence = f"{index}: generation {manifest.number} is generation {target} again: {counted(documents, 'document')}"
    output.result({"generation": manifest.number, "to": target, "documents": documents}, sentence)


def describe_erased(event: Mapping[str, int]) -> str:
    """What a purge erased.

    Examples
    --------
    >>> describe_erased({"documents": 1, "versions": 2}), describe_erased({"documents": 0, "replaced": 3})
    ('1 document (2 versions)', '3 replaced versions')
    """
    documents, replaced = event["documents"], event.get("replaced", 0)
    versions = f" ({counted(event['versions'], 'version')})" if "versions" in event else ""
    parts = [f"{counted(documents, 'document')}{versions}"] if documents or not replaced else []
    return " and ".join([*parts, *([f"{counted(replaced, 'replaced version')}"] if replaced else [])])


def _warn_of_files(folders: Mapping[str, Path], output: Output) -> None:
    """Documents whose files still lie in a folder come back when the index is brought in step with it."""
    for docid, folder in list(folders.items())[:LISTED]:
        output.say(f"{docid} is still in {shown_folder(folder)}: the next `promptdsi sync` adds it again")
    if len(folders) > LISTED:
        output.say(f"… and {len(folders) - LISTED:,} more")
