"""How a claim of the paper is judged: differences with intervals against a bound, and arithmetic against printed figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from promptdsi.bench.system_results import Measure, SystemResult
from promptdsi.evaluation.continual import ROUNDING, Estimate

from .shared import interval, signed

HOLDS, FAILS, NOT_SHOWN = "ordering holds", "ordering does not hold", "not shown"
VERIFIED, VERIFIED_IN_PART = "arithmetic verified", "arithmetic verified in part"
SHOWN, NOT_RUN, NOT_PLANNED = "shown, not judged", "not run", "not planned here"
ROUNDED = "rounded"
SHOWN_AT_MOST = 8  # differences written out; of more, the smallest and the largest


class Claim(NamedTuple):
    text: str
    verdict: str
    evidence: str
    counted: bool = True  # what the paper does not claim itself is shown and not counted


class Gap(NamedTuple):
    """A difference, None while one of the two systems has not run; not `planned` where this scale leaves one of them out."""

    name: str
    difference: Estimate | None
    planned: bool = True


Systems = Sequence[SystemResult | str]  # a label alone is a system this scale does not plan
Rule = Callable[[Sequence[SystemResult]], list[Claim]]


def judge(text: str, gaps: Iterable[Gap], *, margin: float = 0.0, counted: bool = True) -> Claim:
    """Holds where every interval lies above −margin, does not where one lies below it; not shown otherwise."""
    gaps = list(gaps)
    ran = [(gap.name, gap.difference) for gap in gaps if gap.difference is not None]
    missing = [gap.name for gap in gaps if gap.difference is None and gap.planned]
    unplanned = [gap.name for gap in gaps if not gap.planned]
    if any(difference.high < -margin - ROUNDING for _, difference in ran):
        verdict = FAILS
    elif missing or not gaps:
        verdict = NOT_RUN
    elif not ran:
        verdict = NOT_PLANNED
    else:
        verdict = HOLDS if all(difference.low > ROUNDING - margin for _, difference in ran) else NOT_SHOWN
    evidence = [*_differences(ran), *_missing(NOT_RUN, missing), *_missing(NOT_PLANNED, unplanned)]
    return Claim(text, verdict, "; ".join(evidence), counted)


def _differences(ran: Sequence[tuple[str, Estimate]]) -> list[str]:
    """Each with its interval; of many, their number and the two extremes."""
    few = len(ran) <= SHOWN_AT_MOST
    ordered = ran if few else sorted(ran, key=lambda pair: pair[1].value)
    texts = [f"{name} {signed(difference.value)} ({interval(difference, sign=True)})" for name, difference in ordered]
    return texts if few else [f"{len(texts)} differences, from {texts[0]} to {texts[-1]}"]


def _missing(why: str, names: Sequence[str]) -> list[str]:
    if len(names) > SHOWN_AT_MOST:
        return [f"{why}: {len(names)} differences, {names[0]} first"]
    return [f"{why}: {'; '.join(names)}"] if names else []


def gaps(ours: Systems, theirs: Systems, measure: Measure, *, sign: float = 1.0) -> list[Gap]:
    """Each of ours minus each of theirs, over the same queries; the other way round for a negative sign."""
    pairs = []
    for system in ours:
        for other in theirs:
            compared = None if isinstance(system, str) or isinstance(other, str) else system.against(other, measure)
            difference = None if compared is None else compared.difference if sign > 0 else negated(compared.difference)
            names = [each if isinstance(each, str) else each.label for each in (system, other)]
            planned = not isinstance(system, str) and not isinstance(other, str)
            pairs.append(Gap(" − ".join(names if sign > 0 else reversed(names)), difference, planned))
    return pairs


def negated(estimate: Estimate) -> Estimate:
    return Estimate(-estimate.value, -estimate.high, -estimate.low)


def arithmetic(text: str, checks: Sequence[tuple[str, float, str]]) -> Claim:
    """Verified where all printed figures follow from the formula, in part where some do; the others are named."""
    texts = [(f"{what}: {value:,.2f}, printed {printed}", follows(value, printed)) for what, value, printed in checks]
    other = [line if how is None else f"{line} ({how})" for line, how in texts if how != ROUNDED]
    verdict = VERIFIED if not other else FAILS if len(other) == len(checks) else VERIFIED_IN_PART
    count = f"{len(checks) - len(other)} of {len(checks)} printed figures follow by rounding"
    return Claim(text, verdict, "; ".join([count, *(f"not {line}" for line in other)]))


def follows(value: float, printed: str) -> str | None:
    """How a printed figure follows from the value: rounded to the digits printed, truncated to them, or not at all.

    Examples
    --------
    >>> follows(7.664, "7.6"), follows(7.675, "7.7"), follows(877.2, "977")
    ('truncated', 'rounded', None)
    """
    power = 10 ** len(printed.partition(".")[2])
    shown = round(float(printed) * power)
    return ROUNDED if shown == round(value * power) else "truncated" if shown == math.floor(value * power) else None
