"""`promptdsi info`, `log`, `verify` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import IndexPath, Json, Output, open_index, print_json, print_table
from promptdsi.cli.delete_command import describe_erased
from promptdsi.errors import PromptDSIError
from promptdsi.files import sha256_of
from promptdsi.wording import agreeing, counted

if TYPE_CHECKING:
    from promptdsi.index.manifest import Manifest, PrunedGeneration


def info(index: IndexPath, json: Json = False) -> None:
    """Show what an index contains. That is its method, corpora and sizes, and work that is left to do."""
    from promptdsi.index.manifest import Manifest  # with numpy

    opened = open_index(index)
    summary, usage = opened.info(), opened.disk_usage()
    fields = summary._asdict() | usage._asdict()
    shown_first = ("generation", "documents", "deleted", "method", "prompts", "backbone", "store", "format")
    fields = {key: fields[key] for key in (*shown_first, "bytes", "leftovers", "purge_unfinished")}
    corpora = [corpus._asdict() for corpus in summary.corpora]
    folders = [folder._asdict() for folder in Manifest.folders(opened.log())]
    if json:
        print_json(fields | {"corpora": corpora, "folders": folders, "params": summary.params})
        return
    shown = fields | {"bytes": f"{usage.bytes / 1e6:,.1f} MB"}
    rows = {key.replace("_", " "): f"{value:,}" if type(value) is int else str(_word(value)) for key, value in shown.items()}
    print_table(str(index), [{"index": key, "": value} for key, value in rows.items()])
    print_table("corpora", [{key: _word(value) for key, value in corpus.items()} for corpus in corpora])
    if folders:
        print_table("folders, and the generation that last brought the index in step with each", folders)


def log(index: IndexPath, json: Json = False) -> None:
    """List every change of an index. Each is a generation: what made it, what it added, drift, and its checksum."""
    from promptdsi.index.manifest import Manifest

    opened = open_index(index)
    rows, tags = [], opened.tags()
    for state in opened.log():
        names = sorted(name for name, number in tags.items() if number == state.number)
        row = _log_row(state) | {"tags": names, "pruned": not isinstance(state, Manifest)}
        rows.append(row | {"sha256": sha256_of(opened.store.manifest_path(state.number))})
        if json:
            blobs = {name: state.sizes[name] for name in sorted(state.blobs())} if isinstance(state, Manifest) else {}
            params = state.params if isinstance(state, Manifest) else {}
            print_json(rows[-1] | {"event": state.event, "blobs": blobs, "params": params})
    if not json:
        optional = [name for name in ("drift", "tags", "pruned") if any(row[name] not in (None, [], False) for row in rows)]
        rows = [row | {"tags": ", ".join(row["tags"])} for row in rows]
        columns = ("generation", "time", "kind", "what", "documents", *optional)
        print_table(str(index), [{key: _word(row[key]) for key in columns} | {"sha256": row["sha256"][:12]} for row in rows])


def verify(
    index: IndexPath,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="For an index from somebody else: check and search it in a process with bounds.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Check an index for damage. Every file is compared with its checksum; exit code 1 if there are problems."""
    result = open_index(index, trust=True).verify(untrusted=untrusted, progress=output.progress)
    if output.json:
        print_json(result._asdict())
    for sentence in (*(f"checked: {check}" for check in result.checks), *result.problems):
        output.say(sentence)
    sizes = f"{counted(result.generations, 'generation')}, {counted(result.blobs, 'blob')}, {result.bytes / 1e6:,.1f} MB"
    if result.problems:
        raise PromptDSIError(f"{index}: {counted(len(result.problems), 'problem')} in {sizes}")
    output.say(f"{index}: no problems: {sizes}")


def export(
    index: IndexPath,
    to: Annotated[str, typer.Option("--to", help="faiss, beir or hf.")],
    folder: Annotated[Path, typer.Option("--output", "-o", help="New folder to write to.")],
    output: Output,
) -> None:
    """Export an index to FAISS, BEIR or Hugging Face files. They hold rows, documents, or encoder and rows."""
    files = open_index(index, check=True, device="cpu").export(to, folder)
    output.result({"to": to, "folder": str(folder), "files": files}, f"{folder}: {', '.join(files)}")


def _log_row(manifest: Manifest | PrunedGeneration) -> dict[str, Any]:
    event = manifest.event
    drift = event.get("drift")
    return {
        "generation": manifest.number,
        "time": manifest.time,
        "kind": manifest.kind,
        "what": _describe(event),
        "corpus": event.get("corpus", ""),
        "added": event.get("added", 0),
        "documents": manifest.documents,
        "drift": round(drift["fall"], 4) if drift else None,
        "parent": manifest.parent,
    }


def _describe(event: dict[str, Any]) -> str:
    """What made a generation, in a few words."""
    if "to" in event:
        return f"back to {event['to']}"
    if "generations" in event:
        merged = [agreeing(event["merged"], "small corpora merged")] if event.get("merged") else []
        return ", ".join([*([f"{counted(event['generations'], 'generation')} dropped"] if event["generations"] else []), *merged])
    if "documents" in event:
        return describe_erased(event)
    if "corrections" in event:
        return counted(event["corrections"], "correction")
    corpus = f"{event['corpus']} " if event.get("corpus") else ""
    counts = [f"{event[kind]:,} {word}" for kind, word in (("updated", "replaced"), ("deleted", "deleted")) if event.get(kind)]
    parts = ([f"{corpus}+{event['added']:,}"] if event.get("added") else [corpus.strip()] if corpus else []) + counts
    return ", ".join([*parts, *(["fast"] if event.get("fast") else [])])


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value
