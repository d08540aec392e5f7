"""Words of messages: numbers of things, sentences about one thing or many, and what somebody probably meant to type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

NOUNS = {"queries": "query", "corpora": "corpus"} | {
    f"{noun}s": noun for noun in ("chapter", "document", "file", "folder", "judgement", "link", "pair", "text")
}
VERBS = {"are": "is", "were": "was", "have": "has", "name": "names", "serve": "serves"}
MOST_COMPARED = 5000  # names whose spelling is compared, pair by pair
LEAST_SIMILAR, LEAST_SIMILAR_STEM = 0.8, 0.6


def counted(count: int, noun: str) -> str:
    """A number of things.

    Examples
    --------
    >>> counted(1, "document"), counted(2000, "document"), counted(2, "query")
    ('1 document', '2,000 documents', '2 queries')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def agreeing(count: int, sentence: str) -> str:
    """A number before a sentence about many things, which is made to speak of one where there is one.

    Examples
    --------
    >>> agreeing(2, "files were left out"), agreeing(1, "files were left out")
    ('2 files were left out', '1 file was left out')
    """
    if count == 1:
        sentence = re.sub(rf"\b({'|'.join(NOUNS)})\b", lambda match: NOUNS[match[0]], sentence, count=1)
        sentence = re.sub(rf"\b({'|'.join(VERBS)})\b", lambda match: VERBS[match[0]], sentence)
    return f"{count:,} {sentence}"


def suggest(name: str, names: Collection[str]) -> str:
    """The end of an error message that names what was probably meant: a path's end, a longer path, or a similar spelling.

    Examples
    --------
    >>> suggest("notes/house/keys.md", ["house/keys.md", "house/piano.md"]), suggest("keys.md", ["house/keys.md"])
    ("; did you mean 'house/keys.md'?", "; did you mean 'house/keys.md'?")
    >>> suggest("house/kesy.md", ["house/keys.md"]), suggest("house/car.md", ["house/piano.md"])
    ("; did you mean 'house/keys.md'?", '')
    """
    parts = name.split("/")
    ends = (end for start in range(1, len(parts)) if (end := "/".join(parts[start:])) in names)
    longer = [other for other in names if other.endswith(f"/{parts[-1]}")]
    match = next(ends, None) or (longer[0] if len(longer) == 1 else None) or _similar(name, names)
    return f"; did you mean {match!r}?" if match else ""


def suggest_path(path: Path, siblings: Iterable[Path]) -> str:
    """The end of an error message that names the path in the same folder that was probably meant."""
    match = _similar(path.name, {sibling.name for sibling in siblings if not sibling.name.startswith(".")})
    return f"; did you mean '{path.with_name(match)}'?" if match else ""


def siblings_of(path: Path) -> list[Path]:
    """What lies beside a path; nothing where its folder cannot be listed."""
    try:
        return sorted(path.parent.iterdir())
    except OSError:
        return []


def _similar(name: str, names: Collection[str]) -> str | None:
    """The name with the most similar spelling; equal folders and suffixes alone make no similarity."""
    if len(names) > MOST_COMPARED:
        return None
    stem = PurePosixPath(name).stem
    for match in difflib.get_close_matches(name, names, n=3, cutoff=LEAST_SIMILAR):
        if match != name and difflib.SequenceMatcher(None, stem, PurePosixPath(match).stem).ratio() >= LEAST_SIMILAR_STEM:
            return match
    return None
