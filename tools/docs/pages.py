"""Generated pages: written, or compared with what is there."""

from __future__ import annotations

from pathlib import Path


def write_or_check(path: Path, text: str, *, check: bool) -> int:
    """Write a page; with `check` only say whether it is current, and return 1 where it is not."""
    if not check:
        path.write_text(text, "utf-8")
        return 0
    stale = not path.is_file() or path.read_text("utf-8") != text
    print(f"{path.name} is stale; run make docs" if stale else f"{path.name} is up to date")
    return int(stale)
