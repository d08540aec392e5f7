"""IncDSI*: IncDSI whose rows of the newest corpus are solved again and again, each against all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.methods.incdsi import ConvexOptions, IncDSI


@dataclass(kw_only=True)
class IncDSIStar(IncDSI):
    """Ten passes, as the paper reports."""

    name: ClassVar[str] = "incdsi*"

    add_options: ConvexOptions = ConvexOptions(passes=10)
