"""How claims are judged: differences against a bound, corrected for how many there are, and arithmetic against printed figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from promptdsi.bench.system_results import Measure, SystemResult
from promptdsi.evaluation.continual import Estimate, Figures, estimate
from promptdsi.evaluation.corrections import LEVEL, holm, p_value

from .regime import Regime
from .shared import interval, p_text, signed

HOLDS, REFUTED, NOT_SHOWN, UNTESTABLE = "holds", "refuted", "not shown", "cannot be tested in this regime"
VERIFIED, VERIFIED_IN_PART = "arithmetic verified", "arithmetic verified in part"
SHOWN, NOT_RUN, NOT_PLANNED = "shown, not judged", "not run", "not planned here"
ROUNDED = "rounded"
SHOWN_AT_MOST = 8  # differences written out; of more, the smallest and the largest


class Gap(NamedTuple):
    """A difference and its resamples, None while a system has not run; not `planned` where this scale leaves one of them out."""

    name: str
    figures: Figures | None
    planned: bool = True


class Claim(NamedTuple):
    """A claim; its verdict is empty until `judge` has compared its gaps, together with those of the other claims, with −margin."""

    text: str
    verdict: str = ""
    evidence: str = ""
    counted: bool = True  # what the paper does not claim itself is shown and not counted
    gaps: tuple[Gap, ...] = ()
    margin: float = 0.0
    needs_regime: bool = False  # depends on how far new rows move beside D0's


class Tested(NamedTuple):
    """A difference with its interval, and its p-value after Holm's correction; None where no verdict is drawn from it."""

    name: str
    difference: Estimate
    p: float | None


Systems = Sequence[SystemResult | str]  # a label alone is a system this scale does not plan
Rule = Callable[[Sequence[SystemResult]], list[Claim]]


def about(text: str, gaps: Iterable[Gap], *, margin: float = 0.0, counted: bool = True, needs_regime: bool = False) -> Claim:
    """A claim that all gaps lie above −margin, not judged yet."""
    return Claim(text, counted=counted, gaps=tuple(gaps), margin=margin, needs_regime=needs_regime)


def judge(claims: Sequence[Claim], regime: Regime | None = None) -> list[Claim]:
    """Give every open claim its verdict. All their differences are one family: p-values are corrected by Holm for how many there are.

    A claim that needs the paper's regime is not judged in another, and its differences do not count as comparisons.
    """
    other_regime = regime is not None and not regime.as_in_paper
    judgeable = [not (claim.needs_regime and other_regime) for claim in claims]
    places = [
        (number, place)
        for number, claim in enumerate(claims)
        if judgeable[number] and not claim.verdict
        for place, gap in enumerate(claim.gaps)
        if gap.figures is not None
    ]
    figures = [claims[number].gaps[place].figures for number, place in places]
    p_values = [p_value(each, -claims[number].margin) for (number, _), each in zip(places, figures, strict=True) if each is not None]
    corrected = dict(zip(places, holm(p_values), strict=True))
    return [
        claim if claim.verdict else _decided(claim, {place: corrected.get((number, place)) for place in range(len(claim.gaps))})
        for number, claim in enumerate(claims)
    ]


def _decided(claim: Claim, corrected: Mapping[int, float | None]) -> Claim:
    """Holds where every difference is shown to lie above −margin, is refuted where any is shown to lie below; not shown otherwise."""
    ran = [Tested(gap.name, estimate(gap.figures), corrected[place]) for place, gap in enumerate(claim.gaps) if gap.figures is not None]
    missing = [gap.name for gap in claim.gaps if gap.figures is None and gap.planned]
    unplanned = [gap.name for gap in claim.gaps if not gap.planned]
    shown = [test for test in ran if test.p is not None and test.p < LEVEL]
    if ran and all(test.p is None for test in ran):
        verdict = UNTESTABLE
    elif any(test.difference.value < -claim.margin for test in shown):
        verdict = REFUTED
    elif missing or not claim.gaps:
        verdict = NOT_RUN
    elif not ran:
        verdict = NOT_PLANNED
    else:
        verdict = HOLDS if len(shown) == len(ran) else NOT_SHOWN
    evidence = "; ".join([*_differences(ran), *_missing(NOT_RUN, missing), *_missing(NOT_PLANNED, unplanned)])
    return claim._replace(verdict=verdict, evidence=evidence)


def _differences(ran: Sequence[Tested]) -> list[str]:
    """Each with its interval and corrected p-value; of many, their number and the two extremes."""
    few = len(ran) <= SHOWN_AT_MOST
    ordered = ran if few else sorted(ran, key=lambda test: test.difference.value)
    texts = []
    for name, difference, p in ordered:
        texts.append(f"{name} {signed(difference.value)} ({interval(difference, sign=True)}{'' if p is None else f'; p {p_text(p)}'})")
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
            names = [each if isinstance(each, str) else each.label for each in (system, other)]
            name = " − ".join(names if sign > 0 else reversed(names))
            if isinstance(system, str) or isinstance(other, str):
                pairs.append(Gap(name, None, planned=False))
            else:
                difference = system.difference(other, measure)
                pairs.append(Gap(name, None if difference is None else sign * difference))
    return pairs


def arithmetic(text: str, checks: Sequence[tuple[str, float, str]]) -> Claim:
    """Verified where all printed figures follow from the formula, in part where some do; the others are named."""
    texts = [(f"{what}: {value:,.2f}, printed {printed}", follows(value, printed)) for what, value, printed in checks]
    other = [line if how is None else f"{line} ({how})" for line, how in texts if how != ROUNDED]
    verdict = VERIFIED if not other else REFUTED if len(other) == len(checks) else VERIFIED_IN_PART
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
