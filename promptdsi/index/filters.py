"""Filters: conditions on the metadata of documents. A search among the documents that meet them equals leaving the others out of all.

    year>=2020    author=Ada,Grace    tags!=draft    date<2024-07    docid=notes/*

A condition is a field, an operator (= != < <= > >=) and a value; `=` takes several values, separated by commas, of which one must match,
and a value that ends in * matches every beginning with it. Numbers compare as numbers, everything else as text, so ISO dates compare as
dates. A field that holds a list meets a condition if one of its values does. `docid`, `title` and `corpus` are fields of every document.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.extract import PAGES
from promptdsi.errors import UsageError
from promptdsi.index.results import MOST_CONDITIONS

if TYPE_CHECKING:
    from promptdsi.engine.row_table import RowTable
    from promptdsi.index.entry import Entry
    from promptdsi.index.generation import Generation

SYNTAX = re.compile(r"(?P<field>[^=!<>]+?)\s*(?P<operator>!=|<=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
MOST_VALUES = 1000  # of a condition
REMEMBERED = 16  # conditions of a generation
FACETS, FACET_VALUES = 12, 20  # fields that are listed, and values of each


class Condition(NamedTuple):
    """A field, an operator and what its value is compared with."""

    field: str
    operator: str
    values: tuple[str, ...]

    def holds(self, value: Any) -> bool:
        """Whether a document with this value of the field meets the condition; None stands for no value."""
        present = [inner for inner in (value if isinstance(value, list) else [value]) if inner is not None]
        if self.operator in ("=", "!="):
            return any(_equal(inner, text) for inner in present for text in self.values) == (self.operator == "=")
        return any(_compare(COMPARISONS[self.operator], inner, self.values[0]) for inner in present)


def parse_condition(text: str) -> Condition:
    """A condition as it is written.

    Examples
    --------
    >>> parse_condition("author=Ada,Grace")
    Condition(field='author', operator='=', values=('Ada', 'Grace'))
    """
    match = SYNTAX.fullmatch(text.strip())
    if not match:
        raise UsageError(f"the condition {text[:100]!r} is not FIELD=VALUE; the operators are = != < <= > >=")
    several = match["operator"] in ("=", "!=")
    values = tuple(value.strip() for value in match["value"].split(",")) if several else (match["value"].strip(),)
    if len(values) > MOST_VALUES:
        raise UsageError(f"a condition has {len(values):,} values, at most {MOST_VALUES:,} are allowed")
    return Condition(match["field"].strip(), match["operator"], values)


def parse_where(where: str | Iterable[str] | Mapping[str, Any]) -> tuple[str, ...]:
    """Conditions as they are written, from one, several, or a mapping of fields to a value or a list of them; all must hold."""
    if isinstance(where, Mapping):
        pairs = ((field, value if isinstance(value, list | tuple) else [value]) for field, value in where.items())
        where = [f"{field}={','.join(map(_written, values))}" for field, values in pairs]
    return (where,) if isinstance(where, str) else tuple(where)


def filtered_rows(generation: Generation, where: tuple[str, ...]) -> RowTable:
    """The rows of the documents that meet all conditions; those of the last few conditions are kept."""
    table = generation.filtered.get(where)
    if len(where) > MOST_CONDITIONS:
        raise UsageError(f"{len(where)} conditions, at most {MOST_CONDITIONS} are allowed")
    if table is None:
        counts = np.diff(generation.starts, append=len(generation.table))
        table = generation.table.only(np.repeat(matching_documents(generation, where), counts))
        if len(generation.filtered) >= REMEMBERED:
            generation.filtered.clear()
        generation.filtered[where] = table
    return table


def matching_documents(generation: Generation, where: Sequence[str]) -> NDArray[np.bool_]:
    """Which documents of a generation, deleted ones included, meet all conditions."""
    meets = np.ones(len(generation.starts), bool)
    for condition in map(parse_condition, where):
        cache: dict[Any, bool] = {}
        values = field_values(generation, condition.field)
        if generation.complete and not _occurs(values, condition):
            raise unknown_field(condition.field, field_counts(generation))
        for number, value in enumerate(values):
            key = repr(value)
            if key not in cache:
                cache[key] = condition.holds(value)
            meets[number] &= cache[key]
    return meets


def _occurs(values: Iterable[Any], condition: Condition) -> bool:
    """Whether a document has the field of a condition; where none has it, all differ from any value."""
    return condition.operator == "!=" or any(value is not None for value in values)


def missing_fields(generation: Generation, where: Sequence[str]) -> set[str]:
    """The fields of conditions that no document of a generation, or of this part of it, has."""
    conditions = map(parse_condition, where)
    return {condition.field for condition in conditions if not _occurs(field_values(generation, condition.field), condition)}


def unknown_field(field: str, counts: dict[str, Counter[str]]) -> UsageError:
    """The error of a condition on a field that no document has."""
    names = ", ".join(name for name, _ in facets(counts)) or "none"
    return UsageError(f"no document has a field {field!r}; the fields are docid, title, corpus and of metadata: {names}")


def field_counts(generation: Generation) -> dict[str, Counter[str]]:
    """For each field of the metadata the number of live documents with each value."""
    counts: dict[str, Counter[str]] = {}
    for metadata in _live_metadata(generation):
        for field, value in metadata.items():
            values = value if isinstance(value, list) else [value]
            if all(isinstance(inner, str | int | float | bool) for inner in values) and field != PAGES:
                counts.setdefault(field, Counter()).update(set(map(_written, values)))
    return counts


def facets(counts: dict[str, Counter[str]]) -> list[tuple[str, list[tuple[str, int]]]]:
    """The fields of the metadata, those of most documents first, each with its most frequent values and how many documents have them."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))[:FACETS]
    return [(field, sorted(counter.most_common(FACET_VALUES), key=lambda pair: (-pair[1], pair[0]))) for field, counter in ordered]


def field_values(generation: Generation, field: str) -> list[Any]:
    """The value of a field of every document, deleted ones included; None where it has none."""
    if field == "docid":
        return [generation.table.docids[row] for row in generation.starts.tolist()]
    values: list[Any] = [None] * len(generation.starts)
    for first, entry, number in _stored_corpora(generation):
        if field == "corpus":
            for document in range(max(first, 0), min(first + entry.count, len(values))):
                values[document] = entry.arrival_of(document - first).name
            continue
        documents = generation.stored(number)
        pairs = documents.titles() if field == "title" else ((place, fields.get(field)) for place, fields in documents.metadata())
        for position, value in pairs:
            if 0 <= first + position < len(values):
                values[first + position] = value
    return values


def _live_metadata(generation: Generation) -> Iterator[Mapping[str, Any]]:
    deleted = generation.table.deleted
    for first, _, number in _stored_corpora(generation):
        pairs = generation.stored(number).metadata()
        numbered = ((first + position, fields) for position, fields in pairs if 0 <= first + position < len(generation.starts))
        yield from (fields for document, fields in numbered if int(generation.starts[document]) not in deleted)


def _stored_corpora(generation: Generation) -> list[tuple[int, Entry, int]]:
    """First document, entry and number of each corpus of which documents are stored, and of which this generation opened any."""
    count, numbered = len(generation.starts), zip(generation.firsts, generation.manifest.corpora, strict=False)
    opened = [(first, entry, number) for number, (first, entry) in enumerate(numbered) if first < count and first + entry.count > 0]
    return [(first, entry, number) for first, entry, number in opened if entry.documents is not None]


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(value: Any, text: str) -> bool:
    if text.endswith("*"):
        return _written(value).startswith(text[:-1])
    number = _number(text)
    if isinstance(value, int | float) and not isinstance(value, bool) and number is not None:
        return value == number
    return _written(value) == text


def _compare(compare: Callable[[Any, Any], bool], value: Any, text: str) -> bool:
    number, own_number = _number(text), _number(value)
    if number is not None and own_number is not None:
        return compare(own_number, number)
    return isinstance(value, str) and compare(value, text)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
