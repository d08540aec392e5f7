"""Probes and kept queries of a corpus: lists of JSON objects, one blob each."""

from __future__ import annotations

from typing import Any

from promptdsi.index.store import Store


def put_list(store: Store, entries: list[dict[str, Any]], *, since: int) -> str:
    """`since` makes the blobs of two corpora differ: what is erased from one must stay in the other."""
    return store.blobs.put_json({"since": since, "entries": entries})


def get_list(store: Store, name: str) -> list[dict[str, Any]]:
    return list(store.blobs.json(name)["entries"])
