"""How a claim of the paper is judged: differences with intervals against a bound, and sums against printed figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from promptdsi.bench.findings import Finding, Measure
from promptdsi.bench.tables import between, signed
from promptdsi.evaluation.continual import ROUNDING, Estimate

HOLDS, FAILS, NOT_SHOWN = "ordering holds", "ordering does not hold", "not shown"
VERIFIED, VERIFIED_IN_PART = "arithmetic verified", "arithmetic verified in part"
SHOWN, NOT_RUN, NOT_PLANNED = "shown, not judged", "not run", "not planned here"
ROUNDED = "rounded"
SHOWN_AT_MOST = 8  # differences written out; of more, the two ends


class Claim(NamedTuple):
    text: str
    verdict: str
    evidence: str
    counted: bool = True  # what the paper does not claim itself is shown and not counted


class Gap(NamedTuple):
    """A difference; None while one of the two has not run, and for ever where this scale does not plan one of them."""

    name: str
    found: Estimate | None
    planned: bool = True


Systems = Sequence[Finding | str]  # a label alone is a system this scale does not plan
Rule = Callable[[Sequence[Finding]], list[Claim]]


def judge(text: str, gaps: Iterable[Gap], *, margin: float = 0.0, counted: bool = True) -> Claim:
    """Holds where every interval lies above −margin, does not where one lies below it; not shown otherwise."""
    gaps = list(gaps)
    ran = [(gap.name, gap.found) for gap in gaps if gap.found is not None]
    lacking = [gap.name for gap in gaps if gap.found is None and gap.planned]
    unplanned = [gap.name for gap in gaps if not gap.planned]
    if any(found.high < -margin - ROUNDING for _, found in ran):
        verdict = FAILS
    elif lacking or not gaps:
        verdict = NOT_RUN
    elif not ran:
        verdict = NOT_PLANNED
    else:
        verdict = HOLDS if all(found.low > ROUNDING - margin for _, found in ran) else NOT_SHOWN
    evidence = [*_differences(ran), *_lacking(NOT_RUN, lacking), *_lacking(NOT_PLANNED, unplanned)]
    return Claim(text, verdict, "; ".join(evidence), counted)


def _differences(ran: Sequence[tuple[str, Estimate]]) -> list[str]:
    """Each with its interval; of many, how many there are and the two ends."""
    few = len(ran) <= SHOWN_AT_MOST
    said = [f"{name} {signed(found.value)} ({between(found, sign=True)})" for name, found in (ran if few else sorted(ran, key=_value))]
    return said if few else [f"{len(said)} differences, from {said[0]} to {said[-1]}"]


def _value(one: tuple[str, Estimate]) -> float:
    return one[1].value


def _lacking(why: str, names: Sequence[str]) -> list[str]:
    if len(names) > SHOWN_AT_MOST:
        return [f"{why}: {len(names)} differences, {names[0]} first"]
    return [f"{why}: {'; '.join(names)}"] if names else []


def gaps(ours: Systems, theirs: Systems, measure: Measure, *, sign: float = 1.0) -> list[Gap]:
    """Each of ours minus each of theirs, over the same queries; turned around for a negative sign."""
    found = []
    for one in ours:
        for other in theirs:
            compared = None if isinstance(one, str) or isinstance(other, str) else one.against(other, measure)
            difference = None if compared is None else compared.difference if sign > 0 else turned(compared.difference)
            names = [each if isinstance(each, str) else each.label for each in (one, other)]
            planned = not isinstance(one, str) and not isinstance(other, str)
            found.append(Gap(" − ".join(names if sign > 0 else reversed(names)), difference, planned))
    return found


def turned(found: Estimate) -> Estimate:
    return Estimate(-found.value, -found.high, -found.low)


def arithmetic(text: str, checks: Sequence[tuple[str, float, str]]) -> Claim:
    """Verified where all printed figures follow from the formula, in part where some do; the others are named."""
    said = [(f"{what}: {value:,.2f}, printed {printed}", follows(value, printed)) for what, value, printed in checks]
    other = [one if how is None else f"{one} ({how})" for one, how in said if how != ROUNDED]
    verdict = VERIFIED if not other else FAILS if len(other) == len(checks) else VERIFIED_IN_PART
    count = f"{len(checks) - len(other)} of {len(checks)} printed figures follow by rounding"
    return Claim(text, verdict, "; ".join([count, *(f"not {one}" for one in other)]))


def follows(value: float, printed: str) -> str | None:
    """How a printed figure comes from the value: rounded to the digits printed, cut to them, or not at all.

    Examples
    --------
    >>> follows(7.664, "7.6"), follows(7.675, "7.7"), follows(877.2, "977")
    ('cut', 'rounded', None)
    """
    power = 10 ** len(printed.partition(".")[2])
    shown = round(float(printed) * power)
    return ROUNDED if shown == round(value * power) else "cut" if shown == math.floor(value * power) else None
