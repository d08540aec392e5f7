"""Markdown, with YAML front matter where it has some."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import yaml  # type: ignore[import-untyped]

from promptdsi.corpus.decoding import decode_text
from promptdsi.corpus.extract import Extract
from promptdsi.corpus.reading import check_depth

NAME = "markdown"
SUFFIXES = (".md", ".markdown", ".mdx")
FRONT_MATTER = re.compile(r"---[ \t]*\n(?P<fields>.{0,65536}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Without aliases: a few lines of them unfold to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def extract(contents: bytes) -> Extract:
    text, notes = decode_text(contents)
    match = FRONT_MATTER.match(text)
    fields = _fields(match["fields"]) if match else None
    if match is None or fields is None:
        return Extract(text, notes=notes)
    title = fields.pop("title", "")
    return Extract(text[match.end() :], str(title or ""), fields, notes=notes)


def _fields(source: str) -> dict[str, Any] | None:
    """The fields of front matter, as JSON can hold them; None where it is none, and then it is text."""
    try:
        values = yaml.load(source, _Loader)
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            return None
        fields = {name: _plain(value) for name, value in values.items() if value is not None}
        check_depth(json.dumps(fields, allow_nan=False))
    except Exception:  # the parser raises errors of many kinds at values that are not what their tag says
        return None
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
