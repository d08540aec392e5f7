"""The records of a corpus and the rules they obey: Document, Query, Judgement.

Readers add file and line to the message of a broken rule; writers apply the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

SPLITS = ("train", "dev", "test")
KINDS = ("annotated", "pseudo")
MAX_ID_CHARACTERS = 512
RESERVED_FIELDS = frozenset({"_id", "title", "text"})
EMPTY: Mapping[str, Any] = MappingProxyType({})
# C0 and C1 controls: they cannot be seen, and tab and line feed would break qrels and run files.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Document(NamedTuple):
    """A retrievable text."""

    docid: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = EMPTY


def whole_text(document: Document) -> str:
    """The title and text of a document, as the encoder reads it."""
    return f"{document.title}. {document.text}" if document.title else document.text


class Query(NamedTuple):
    """A text that should retrieve a document: *annotated* came with the data, *pseudo* was generated from the document."""

    queryid: str
    text: str
    kind: str = "annotated"
    metadata: Mapping[str, Any] = EMPTY


class Judgement(NamedTuple):
    """One row of qrels: the document is relevant to the query if the score is positive."""

    queryid: str
    docid: str
    score: int = 1


def check_id(value: object, what: str = '"_id"') -> None:
    """Raise ValueError if `value` is not a valid id."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_kind_of(value)}, expected a string")
    if not value or value.isspace():
        raise ValueError(f"{what} is blank")
    if len(value) > MAX_ID_CHARACTERS:
        raise ValueError(f"{what} has {len(value)} characters, at most {MAX_ID_CHARACTERS} are allowed")
    if not value.isprintable() and (control := CONTROL.search(value)):
        raise ValueError(f"{what} holds the control character U+{ord(control[0]):04X}")


def check_text(value: object, what: str = '"text"') -> None:
    """Raise ValueError if `value` is not a text or is blank."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_kind_of(value)}, expected a string")
    if not value or value.isspace():
        raise ValueError(f"{what} is empty")


def check_document(document: Document) -> None:
    check_id(document.docid)
    check_text(document.text)
    if not isinstance(document.title, str):
        raise ValueError(f'"title" is {_kind_of(document.title)}, expected a string')
    if document.metadata and (clash := RESERVED_FIELDS & document.metadata.keys()):
        raise ValueError(f"metadata may not use the name {sorted(clash)[0]!r}")


def check_query(query: Query) -> None:
    check_id(query.queryid)
    check_text(query.text)
    if query.kind not in KINDS:
        raise ValueError(f'"kind" is {query.kind!r}, expected one of {", ".join(KINDS)}')
    if query.metadata and (clash := {"_id", "text", "kind"} & query.metadata.keys()):
        raise ValueError(f"metadata may not use the name {sorted(clash)[0]!r}")


def check_characters(value: object) -> None:
    """Raise ValueError for NUL and lone surrogates at any depth: a UTF-8 file cannot hold them."""
    for text in _strings(value):
        if "\x00" in text:
            raise ValueError("holds a NUL character")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"holds the lone surrogate U+{ord(text[error.start]):04X}") from None


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _kind_of(value: object) -> str:
    """The JSON name of a value's type."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
