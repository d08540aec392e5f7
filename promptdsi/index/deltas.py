"""How a manifest is stored: in full, or as what changed against the manifest of an earlier generation, its base.

The base of generation n is n without its lowest binary digit: 1000 is stored against 992, that against 960, 896, 768 and 512, which is
stored in full. So a generation is read from at most as many files as its number has digits 1; n generations take some n log n bytes, and
no chain can be long or lead in a circle. A base that was pruned is left out.

What a purge changes in a base, names of blobs and documents that are hidden, is what it changes in every generation stored against it: so
while it rewrites file after file each generation can be read. For that, deleted documents are stored by corpus and position, not by number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

from promptdsi.aliases import MANIFEST, renamed
from promptdsi.errors import DataError
from promptdsi.index.entry import Arrival, Entry
from promptdsi.index.file_checks import INHERITED, MOST_BLOBS, MOST_CORPORA, check_content, check_state
from promptdsi.index.manifest import Manifest, PrunedGeneration
from promptdsi.index.sealed import FORMAT, unsealed
from promptdsi.methods.options import current_params

DEFAULTS = {field.name: field.default for field in fields(Entry) if field.default is not MISSING}
GENERATION_FIELDS = ("number", "parent", "kind", "time", "event", "erase", "format", "written_by")  # never inherited


def bases(number: int) -> Iterator[int]:
    """The generations that a manifest may be stored against, the nearest first.

    Examples
    --------
    >>> list(bases(13)), list(bases(8))
    ([12, 8], [])
    """
    while number := number & (number - 1):
        yield number


def to_content(manifest: Manifest, base: Manifest | None) -> dict[str, Any]:
    """A manifest as its file holds it, against `base` or in full; `sizes` has every blob that the file names."""
    content: dict[str, Any] = {name: getattr(manifest, name) for name in GENERATION_FIELDS}
    content |= {"pruned": list(manifest.pruned)} if manifest.pruned else {}
    if base is None:
        full = {
            "corpora": [_to_json(entry) for entry in manifest.corpora],
            "sizes": {name: manifest.sizes[name] for name in manifest.blobs()},
        }
        full |= {name: list(getattr(manifest, name)) for name in ("tombstones", "retired")}
        return content | {name: getattr(manifest, name) for name in INHERITED} | full
    content |= {"base": base.number, "base_time": base.time}
    changed = {name: getattr(manifest, name) for name in INHERITED if getattr(manifest, name) != getattr(base, name)}
    shared = list(zip(manifest.corpora, base.corpora, strict=False))
    replaced = {number: entry for number, (entry, old) in enumerate(shared) if entry is not old and entry != old}
    added = manifest.corpora[len(shared) :]
    names = {name for entry in (*replaced.values(), *added) for name in entry.blobs()}
    names |= {changed[name] for name in ("encoder", "tokenizer", "statistics") if changed.get(name)} | {
        *changed.get("prompts", {}).values()
    }
    content |= changed | {"sizes": {name: manifest.sizes[name] for name in names}}
    numbered = {str(number): _to_json(entry) for number, entry in replaced.items()}
    content["corpora"] = {"keep": len(shared), "replaced": numbered, "added": [_to_json(entry) for entry in added]}
    content["deleted"] = {}
    before = [[] if number in replaced else positions for number, positions in enumerate(base.deleted_positions()[: len(shared)])]
    for number, (new, old) in enumerate(zip_longest(manifest.deleted_positions(), before, fillvalue=())):
        if new != old and (new or old):
            content["deleted"][str(number)] = _difference(new, old)
    content["retired"] = _difference(manifest.retired, base.retired)
    return content


def read_content(path: Path) -> dict[str, Any]:
    """What the file of a generation says, checked by itself: nothing of its base is read."""
    content = unsealed(path)
    try:
        if content.get("format") == 1 and isinstance(params := content.get("params"), dict):
            content = renamed(content, MANIFEST) | {"params": current_params(params)}
        check_content(content, bases)
    except (ValueError, TypeError) as error:
        raise not_a_manifest(path, error) from None
    return content


def not_a_manifest(path: Path, error: Exception) -> DataError:
    return DataError(f"is no manifest: {str(error).strip()}; run `promptdsi verify`", path=path)


def to_manifest(content: dict[str, Any], base: Manifest | None, sizes: dict[str, int]) -> Manifest:
    """The generation that a file and its base describe. `sizes` takes up the sizes of all files that were read."""
    sizes |= content["sizes"]
    stored: dict[str, Any] = {name: content[name] for name in GENERATION_FIELDS} | {
        "pruned": tuple(content.get("pruned", ())),
        "sizes": sizes,
    }
    if base is None:
        state = {name: tuple(content[name]) for name in ("tombstones", "retired")}
        inherited = {name: content.get(name) for name in INHERITED}
        manifest = Manifest(**stored, **inherited, **state, corpora=tuple(_entries(content["corpora"])))  # type: ignore[arg-type]
        _check_sizes(manifest, manifest.corpora)
        return manifest
    if base.time != content["base_time"]:
        raise ValueError(f"generation {base.number} is of {base.time}, not of {content['base_time']}: of another index, or another copy")
    changes = content["corpora"]
    if changes["keep"] > len(base.corpora):
        raise ValueError(f"corpora.keep is {changes['keep']}, and generation {base.number} has {len(base.corpora)}")
    corpora = list(base.corpora[: changes["keep"]])
    for number, entry in zip(changes["replaced"], _entries(changes["replaced"].values()), strict=True):
        corpora[int(number)] = entry
    corpora += (added := _entries(changes["added"]))
    before = base.deleted_positions()[: changes["keep"]]
    deleted = [[] if str(number) in changes["replaced"] else positions for number, positions in enumerate(before)]
    deleted += [[] for _ in changes["added"]]
    for number, difference in content["deleted"].items():
        if int(number) >= len(corpora):
            raise ValueError(f"deleted.{number} is of a corpus that does not exist")
        deleted[int(number)] = _changed(deleted[int(number)], difference)
    firsts = accumulate((entry.count for entry in corpora), initial=0)
    tombstones = tuple(first + position for first, positions in zip(firsts, deleted, strict=False) for position in positions)
    inherited = {name: content[name] if name in content else getattr(base, name) for name in INHERITED}
    retired = tuple(_changed(base.retired, content["retired"]))
    manifest = Manifest(**stored, **inherited, tombstones=tombstones, retired=retired, corpora=tuple(corpora))  # type: ignore[arg-type]
    _check_sizes(manifest, [*added, *(corpora[int(number)] for number in changes["replaced"])])
    if max(len(manifest.corpora) / MOST_CORPORA, len(manifest.retired) / MOST_BLOBS, len(sizes) / MOST_BLOBS) > 1:
        raise ValueError("it and its bases hold more corpora or blobs than an index can")
    return manifest


def check_whole(manifest: Manifest, path: Path) -> Manifest:
    """The manifest, if its parts fit together."""
    try:
        check_state(manifest)
    except ValueError as error:
        raise not_a_manifest(path, error) from None
    return manifest


def pruned_content(manifest: Manifest, by: int) -> dict[str, Any]:
    """What stays of a generation that generation `by` pruned. It names no blob."""
    event = manifest.event | ({"folders": folders} if (folders := manifest.sources()) else {})
    content = {name: getattr(manifest, name) for name in ("number", "parent", "kind", "time", "written_by")}
    return content | {"event": event, "documents": manifest.documents, "pruned_by": by, "format": FORMAT}


def to_pruned(content: dict[str, Any]) -> PrunedGeneration:
    return PrunedGeneration(*(content[name] for name in PrunedGeneration._fields))


def _to_json(entry: Entry) -> dict[str, Any]:
    """An entry without the fields that have their default."""
    values = {field.name: getattr(entry, field.name) for field in fields(Entry)}
    return {name: value for name, value in values.items() if name not in DEFAULTS or value != DEFAULTS[name]}


def _entries(contents: Collection[dict[str, Any]]) -> list[Entry]:
    merged = [tuple(Arrival(*arrival) for arrival in content.get("merged", ())) for content in contents]
    files = [tuple(map(tuple, stored)) if isinstance(stored := content.get("documents"), list) else stored for content in contents]
    entries = [
        Entry(**content | {"merged": arrivals, "documents": documents})
        for content, arrivals, documents in zip(contents, merged, files, strict=True)
    ]
    for entry in entries:
        if isinstance(entry.documents, tuple):
            covered = [positions for _, positions in entry.document_files]
            if not covered or covered[0].start or not all(covered):
                raise ValueError("files of documents do not follow each other")
        if entry.merged and (
            sum(arrival.documents for arrival in entry.merged) != entry.count
            or any(arrival.part or arrival.since > entry.since for arrival in entry.merged)
            or entry.part
            or entry.fast
        ):
            raise ValueError("corpora were merged to other documents than they have")
    return entries


def _check_sizes(manifest: Manifest, entries: Sequence[Entry]) -> None:
    """Raise ValueError unless the size of every blob that a file names is known; its bases name the others."""
    names = {manifest.encoder, manifest.tokenizer, *manifest.prompts.values(), *filter(None, [manifest.statistics])}
    if missing := names.union(*(entry.blobs() for entry in entries)) - manifest.sizes.keys():
        raise ValueError(f"sizes has none of {min(missing)}")


def _difference(new: Sequence[Any], old: Sequence[Any]) -> dict[str, list[Any]]:
    return {"added": sorted(set(new).difference(old)), "removed": sorted(set(old).difference(new))}


def _changed(values: Sequence[Any], difference: dict[str, list[Any]]) -> list[Any]:
    return sorted(set(values).difference(difference["removed"]).union(difference["added"]))
