"""reStructuredText: read as text, its underlined headings as Markdown's."""

from __future__ import annotations

import re

from promptdsi.corpus.decoding import decode_text
from promptdsi.corpus.extract import Extract

NAME = "restructured"
SUFFIXES = (".rst", ".rest")
ADORNED = re.compile(
    r"^(?:(?P<over>[!-/:-@\[-`{-~])(?P=over){2,}[ \t]*\n[ \t]*)?(?P<title>\S[^\n]*)\n(?P<under>[!-/:-@\[-`{-~])(?P=under){2,}[ \t]*$", re.M
)


def extract(contents: bytes) -> Extract:
    text, notes = decode_text(contents)
    levels: dict[tuple[str, str], int] = {}  # adornments in the order of their first use

    def heading(match: re.Match[str]) -> str:
        level = levels.setdefault((match["over"] or "", match["under"]), len(levels) + 1)
        return f"{'#' * min(level, 6)} {match['title'].strip()}\n"

    return Extract(ADORNED.sub(heading, text), notes=notes)
