"""`promptdsi tag`."""

from __future__ import annotations

from typing import Annotated

import typer

from promptdsi.cli.console import IndexPath, Output, open_index
from promptdsi.errors import UsageError


def tag(
    index: IndexPath,
    name: Annotated[str, typer.Argument(help="Name of the generation.", metavar="NAME")],
    generation: Annotated[int | None, typer.Argument(help="Generation to name (default: the newest).", metavar="[GENERATION]")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the name; the generation stays.")] = False,
    *,
    output: Output,
) -> None:
    """Name a generation. `search --at NAME` searches it, `rollback --to NAME` goes back to it, and `prune` keeps it."""
    if delete and generation is not None:
        raise UsageError("--delete takes the name alone")
    opened = open_index(index)
    number = opened.untag(name) if delete else opened.tag(name, generation)
    sentence = f"{index}: generation {number} is no longer named {name}" if delete else f"{index}: {name} is generation {number}"
    output.result({"tag": name, "generation": number, "deleted": delete}, sentence)
