"""What a reader noticed without stopping: duplicates counted once, lines skipped on request, judgements left out."""

from __future__ import annotations

from collections import Counter

from promptdsi.errors import DataError

SHOWN = 20  # how many skipped lines are listed in full; all are counted


class ReadNotes:
    """Collects remarks while reading; `skip=True` turns a bad record into a remark instead of an error."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.skipped: list[DataError] = []
        self.counts: Counter[str] = Counter()

    def refuse(self, error: DataError) -> None:
        """Raise the error, or remember it where the user asked to skip bad records."""
        if not self.skip:
            raise error
        self.skipped.append(error)

    def count(self, what: str, amount: int = 1) -> None:
        """Add to a counted remark such as 'documents repeated with equal content, kept once'."""
        if amount:
            self.counts[what] += amount

    def sentences(self) -> list[str]:
        """Everything worth saying, ready to print."""
        lines = [f"{amount:,} {what}" for what, amount in sorted(self.counts.items())]
        if self.skipped:
            lines.append(f"{len(self.skipped):,} bad records skipped:")
            lines += [f"  {error}" for error in self.skipped[:SHOWN]]
            if len(self.skipped) > SHOWN:
                lines.append(f"  … and {len(self.skipped) - SHOWN:,} more")
        return lines
