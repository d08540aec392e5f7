"""Files of kinds that are not read, counted by suffix."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

NO_SUFFIX = "without a suffix"
# Kinds that are not read → what the program that wrote them can save instead.
SAVED_AS = {".doc": ".docx", ".odt": ".docx", ".rtf": ".docx", ".ppt": ".pptx", ".odp": ".pptx", ".xls": ".csv", ".xlsx": ".csv"}


class UnreadKinds(Counter[str]):
    """How many files of each suffix were not read.

    Examples
    --------
    >>> kinds = UnreadKinds()
    >>> for name in ("a.jpg", "b.doc", "c.JPG", "README"):
    ...     kinds.note(name)
    >>> kinds.sentences()
    ['not read: 2 .jpg, 1 .doc, 1 without a suffix; save .doc as .docx or PDF']
    """

    def note(self, name: str) -> None:
        """Count a file."""
        self[PurePosixPath(name.lower()).suffix or NO_SUFFIX] += 1

    def sentences(self) -> list[str]:
        """What was not read and what to do about it; nothing where all was read."""
        counts = sorted(self.items(), key=lambda item: (-item[1], item[0] == NO_SUFFIX, item[0]))
        others = [f"{kind} as {other} or PDF" for kind, other in SAVED_AS.items() if kind in self]
        hint = f"; save {', '.join(others)}" if others else ""
        return [f"not read: {', '.join(f'{count:,} {kind}' for kind, count in counts)}{hint}"] if counts else []
