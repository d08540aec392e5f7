"""English function words: they do not tell what a text is about."""

from __future__ import annotations

STOPWORDS = frozenset(
    """a about above across after again against all almost along already also although always am among an and another any
    anything are around as at away back be became because become been before being below between both but by came can
    cannot could did do does doing done down during each either else enough even ever every few first for from get gets
    give given go goes had has have having he her here hers him his how however i if in instead into is it its itself just
    keep kept kind known last later least less let like likely long made make makes many may me might more most mostly
    much must my near nearly never no nor not nothing now of off often on once one only onto or other others our out over
    own part per perhaps quite rather really same she should since so some something sometimes soon still such take taken
    than that the their them then there these they thing things this those though three through thus to together too
    toward towards two under until up upon us use used uses using usually very was way we well went were what when where
    whether which while who whole whom whose why will with within without would yet you your""".split()  # noqa: SIM905
)
