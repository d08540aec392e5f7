"""Data from files that somebody else may have written: JSON within bounds, and its values checked for type and range before use.

    MANIFEST = record({"number": integer(1, 10**9), "kind": text(50)}, {"event": table(text(50), scalar)})
    MANIFEST(parse_json(raw))          # ValueError: number is -1, expected a whole number from 1 to 1000000000

A check is a function that raises ValueError unless a value is as it should be. Not pydantic: importing that takes a tenth of a second,
which every search would pay.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

Check = Callable[[Any], None]

DIGITS = 64  # of a number: a double has seventeen that matter
DEPTH = 32  # lists and objects in each other
VALUE_BYTES = 100  # of memory that a value takes at most beside its text
SMALL = 1 << 20  # bytes of memory that every machine has
SHOWN = 60  # characters of a wrong value in a message


def available_memory() -> int:
    """Bytes that this machine could give a process now; its physical memory where that is not known."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return int(file.read().split(b"MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_json(raw: bytes | str, *, most: int | None = None, constants: bool = False) -> Any:
    """JSON of bounded depth, with numbers of bounded length, that takes at most `most` bytes of memory (half of what is available).

    Every value follows a comma or an opening bracket, so their number, which takes the memory, is known before anything is parsed.
    `constants` allows NaN and Infinity.
    """
    comma, brackets = (b",", (b"[", b"{")) if isinstance(raw, bytes) else (",", ("[", "{"))
    values = raw.count(comma) + sum(map(raw.count, brackets))  # type: ignore[arg-type]
    needed = VALUE_BYTES * values + 4 * len(raw)
    if most is None:
        most = available_memory() // 2 if needed > SMALL else SMALL
    if needed > most:
        raise ValueError(f"its {values:,} values could take {needed >> 20:,} MiB of memory")
    try:
        return json.loads(raw, parse_float=_real_number, parse_constant=float if constants else _no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:  # Python bounds the digits of whole numbers itself, and says how to lift the bound
        if "int_max_str_digits" in str(error):
            raise ValueError("a number has too many digits") from None
        raise


def check_depth(value: Any, depth: int = DEPTH) -> None:
    """Raise ValueError where lists and objects are nested more deeply than `depth`."""
    level = [value]
    while level := [inner for outer in level if isinstance(outer, dict | list) for inner in _inner(outer)]:
        depth -= 1
        if depth < 0:
            raise ValueError("it is nested too deeply")


def _inner(outer: dict[str, Any] | list[Any]) -> Collection[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def _real_number(digits: str) -> float:
    if len(digits) > DIGITS:
        raise ValueError("a number has too many digits")
    return float(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


# Checks ------------------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value in a message; only its kind where it is long or nested."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"{str(value)[:SHOWN]!r}" if isinstance(value, str) else f"{value!r}"[:SHOWN]


def integer(low: int, high: int) -> Check:
    """A whole number in a range."""

    def check(value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f" is {shown(value)}, expected a whole number from {low} to {high}")

    return check


def real(low: float = -1e12, high: float = 1e12) -> Check:
    """A finite number in a range."""

    def check(value: Any) -> None:
        if type(value) not in (int, float) or not (low <= value <= high and math.isfinite(value)):
            raise ValueError(f" is {shown(value)}, expected a number from {low:g} to {high:g}")

    return check


def truth(value: Any) -> None:
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f" is {shown(value)}, expected true or false")


def text(most: int = 10_000, pattern: re.Pattern[str] | None = None, what: str = "") -> Check:
    """Text of bounded length that UTF-8 can hold, of a pattern where one is given; `what` says what else it is not."""

    def check(value: Any) -> None:
        if type(value) is str and len(value) <= most and value.isascii() and (pattern is None or pattern.fullmatch(value)):
            return
        if type(value) is not str or len(value) > most:
            raise ValueError(f" is {shown(value)}, expected text of at most {most:,} characters")
        if pattern is not None and not pattern.fullmatch(value):
            raise ValueError(f" is {shown(value)}, which is no {what}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(" holds a lone surrogate") from None

    return check


def choice(values: Collection[Any]) -> Check:
    """One of some values."""

    def check(value: Any) -> None:
        if type(value) is not str or value not in values:
            raise ValueError(f" is {shown(value)}, expected one of {', '.join(map(str, values))}")

    return check


def optional(inner: Check) -> Check:
    """null, or what the inner check accepts."""

    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    return check


def scalar(value: Any) -> None:
    """A value that is neither list nor object, and not long."""
    if value is not None and type(value) not in (bool, int, float):
        text()(value)
    if type(value) in (int, float) and not abs(value) <= 2**63:
        raise ValueError(f" is {shown(value)}, which is too large")


def plain(value: Any) -> None:
    """A scalar, or a short list or object of plain values."""
    if isinstance(value, dict):
        table(text(200), plain, 1000)(value)
    elif isinstance(value, list):
        items(plain, 1000)(value)
    else:
        scalar(value)


def items(inner: Check, most: int) -> Check:
    """A list of bounded length."""

    def check(value: Any) -> None:
        if type(value) is not list or len(value) > most:
            raise ValueError(f" is {shown(value)}, expected a list of at most {most:,}")
        for number, entry in enumerate(value):
            try:
                inner(entry)
            except ValueError as error:
                raise inside(str(number), error) from None

    return check


def table(key: Check, inner: Check, most: int) -> Check:
    """An object with any keys that pass a check, of bounded number."""

    def check(value: Any) -> None:
        if type(value) is not dict or len(value) > most:
            raise ValueError(f" is {shown(value)}, expected an object of at most {most:,} keys")
        for name, entry in value.items():
            try:
                key(name)
                inner(entry)
            except ValueError as error:
                raise inside(name, error) from None

    return check


def record(required: Mapping[str, Check], optional_fields: Mapping[str, Check] | None = None, *, others: Check | None = None) -> Check:
    """An object with these fields; other fields must pass `others`, and without it there may be none."""
    fields = {**required, **(optional_fields or {})}

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise ValueError(f" is {shown(value)}, expected an object")
        if missing := required.keys() - value.keys():
            raise ValueError(f" has no {min(missing)!r}")
        for name, entry in value.items():
            inner = fields.get(name, others)
            if inner is None:
                raise ValueError(f" has a field {name[:SHOWN]!r} that is not known")
            try:
                if name not in fields:
                    text()(name)
                inner(entry)
            except ValueError as error:
                raise inside(name, error) from None

    return check


def inside(name: str, error: ValueError) -> ValueError:
    """The problem of a part of a value: its message begins with the name of the part."""
    problem = str(error)
    return ValueError(f"{name[:SHOWN]}{'' if problem.startswith(' ') else '.'}{problem}")


def within(name: str, check: Check, value: Any) -> None:
    """Apply a check to a part of a value."""
    try:
        check(value)
    except ValueError as error:
        raise inside(name, error) from None
