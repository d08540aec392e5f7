"""Opening a generation for searching: in this process or on a cluster, also while another process purges."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from promptdsi.errors import DataError
from promptdsi.index.generation import Generation, Opening
from promptdsi.index.manifest import Manifest
from promptdsi.index.shards import ShardedGeneration
from promptdsi.index.store import Store


def open_generation(
    store: Store,
    opening: Opening,
    *,
    at: int | None = None,
    manifest: Manifest | None = None,
    verified: Collection[str] = frozenset(),
    erase: Mapping[str, str] | None = None,
) -> Generation:
    """Open a generation; if another process purges meanwhile, read the manifest again.

    `manifest` is the generation's, where it was read just before. `erase` maps the blobs that an unfinished purge removes to their
    replacements.
    """
    kind = Generation if opening.on is None else ShardedGeneration
    manifest = manifest or store.manifest(at)
    if erase and manifest.blobs() & erase.keys():
        return kind(store, manifest.renamed(dict(erase)), opening, verified=verified)
    with contextlib.suppress(DataError, FileNotFoundError):
        generation = kind(store, manifest, opening, verified=verified)
        if at is None or store.manifest(at) == manifest:
            return generation
    return kind(store, store.manifest(at), opening, verified=verified)
