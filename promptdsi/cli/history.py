"""`promptdsi info`, `log`, `verify` and `export`: what an index is, how it came to be, whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import Json, Quiet, documents, print_json, print_table, progress_for, say
from promptdsi.cli.learn import IndexPath
from promptdsi.errors import PromptDSIError

if TYPE_CHECKING:
    from promptdsi.index.manifest import Manifest
    from promptdsi.index.store import Store


def info(index: IndexPath, json: Json = False) -> None:
    """What an index holds: its method, corpora, sizes, and what is left to do."""
    from promptdsi.index.purge import pending
    from promptdsi.index.store import Store

    store = Store(index)
    manifest = store.manifest()
    size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
    facts: dict[str, Any] = {
        "generation": manifest.number,
        "documents": manifest.documents,
        "deleted": deleted(store, manifest),
        "method": manifest.method,
        "prompts": manifest.params["prompts"],
        "backbone": manifest.params["backbone"],
        "store": manifest.store,
        "format": manifest.format,
        "bytes": size,
        "leftovers": len(store.leftovers()),
        "purge_unfinished": pending(store, manifest),
    }
    corpora = []
    for entry, gone in zip(manifest.corpora, manifest.deleted_positions(), strict=True):
        live = entry.count - len(gone)
        kept = {"probes": bool(entry.probes), "queries": bool(entry.queries)}
        corpora.append({"corpus": entry.name, "documents": live, "since": entry.since, "trained": not entry.fast} | kept)
    if json:
        print_json(facts | {"corpora": corpora, "params": manifest.params})
        return
    shown = facts | {"bytes": f"{size / 1e6:,.1f} MB"}
    rows = {key.replace("_", " "): f"{v:,}" if type(v) is int else str(_word(v)) for key, v in shown.items()}
    print_table(str(index), [{"index": key, "": value} for key, value in rows.items()])
    print_table("corpora", [{key: _word(value) for key, value in row.items()} for row in corpora])


def deleted(store: Store, manifest: Manifest) -> int:
    """Documents that `undelete` could show again: hidden, not purged, not replaced."""
    from promptdsi.index.removal import rows_by_docid

    gone = set(manifest.tombstones)
    return sum(gone.issuperset(rows) for rows in rows_by_docid(store, manifest).values())


def log(index: IndexPath, json: Json = False) -> None:
    """Every generation: what made it, what it added, drift, and its checksum."""
    from promptdsi.files import sha256_of
    from promptdsi.index.store import Store

    store = Store(index)
    rows = []
    for manifest in store.history():
        rows.append(_line(manifest) | {"sha256": sha256_of(store.manifest_path(manifest.number))})
        if json:
            print_json(rows[-1] | {"event": manifest.event, "blobs": manifest.sizes, "params": manifest.params})
    if not json:
        shown = ("generation", "time", "kind", "what", "documents", "drift")
        print_table(str(index), [{key: _word(row[key]) for key in shown} | {"sha256": row["sha256"][:12]} for row in rows])


def verify(index: IndexPath, quiet: Quiet = False, json: Json = False) -> None:
    """Check every file against its checksum and every generation against itself. Exit code 1 if anything is wrong."""
    from promptdsi.index.index import Index

    found = Index.open(index, check=False).verify(progress=progress_for(quiet))
    if json:
        print_json(found._asdict())
    for problem in found.problems:
        say(problem, quiet=quiet)
    sizes = f"{found.generations:,} generations, {found.blobs:,} blobs, {found.bytes / 1e6:,.1f} MB"
    if found.problems:
        raise PromptDSIError(f"{index}: {len(found.problems)} problems in {sizes}")
    say(f"{index}: all well: {sizes}", quiet=quiet)


def export(
    index: IndexPath,
    to: Annotated[str, typer.Option("--to", help="faiss, beir or hf.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder to write to.")],
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write rows for FAISS, documents as a BEIR folder, or encoder and rows as a Hugging Face style folder."""
    from promptdsi.index.index import Index

    files = Index.open(index, device="cpu").export(to, output)
    if json:
        print_json({"to": to, "folder": str(output), "files": files})
    say(f"{output}: {', '.join(files)}", quiet=quiet)


def _line(manifest: Manifest) -> dict[str, Any]:
    event = manifest.event
    drift = event.get("drift")
    return {
        "generation": manifest.number,
        "time": manifest.time,
        "kind": manifest.kind,
        "what": _what(event),
        "corpus": event.get("corpus", ""),
        "added": event.get("added", 0),
        "documents": manifest.documents,
        "drift": round(drift["fall"], 4) if drift else None,
        "parent": manifest.parent,
    }


def _what(event: dict[str, Any]) -> str:
    """What made a generation, in a few words."""
    if "to" in event:
        return f"back to {event['to']}"
    if "documents" in event:
        return documents(event["documents"])
    replaced = f", {event['updated']:,} replaced" if event.get("updated") else ""
    added = f" +{event['added']:,}" if event.get("added") else ""
    return f"{event.get('corpus', '')}{added}{replaced}{', fast' if event.get('fast') else ''}"


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value
