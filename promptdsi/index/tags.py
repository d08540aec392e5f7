"""Tags: names of generations, in the file `tags.json`. `--at NAME` finds a tagged generation, and `prune` keeps it."""

from __future__ import annotations

from pathlib import Path

from promptdsi import __version__
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write
from promptdsi.index.file_checks import MOST_TAG, MOST_TAGS, TAG, TAGS
from promptdsi.index.sealed import FORMAT, sealed, unsealed
from promptdsi.index.store import TAGS_FILE, Store
from promptdsi.wording import suggest


def read_tags(store: Store) -> dict[str, int]:
    """The tags of an index, each with its generation."""
    path = store.folder / TAGS_FILE
    if not path.exists() and not path.is_symlink():
        return {}
    content = unsealed(path)
    try:
        TAGS(content)
    except ValueError as error:
        raise DataError(f"is no list of tags: {str(error).strip()}", path=path) from None
    return dict(content["tags"])


def tag(store: Store, name: str, generation: int | None = None) -> int:
    """Give a generation, by default the current one, a name; the generation it names."""
    if len(name) > MOST_TAG or not TAG.fullmatch(name):
        raise UsageError(f"a tag is a letter, then letters, digits, '.', '_' or '-', at most {MOST_TAG} in all, not {name[:50]!r}")
    with store.writing():
        store.finish(store.manifest())  # an interrupted prune may be about to drop the generation
        number, tags = store.manifest(generation).number, read_tags(store)
        if tags.get(name, number) != number:
            raise UsageError(f"the tag {name!r} names generation {tags[name]}; remove it first with `promptdsi tag --delete`")
        if len(tags) >= MOST_TAGS:
            raise UsageError(f"{store.folder} has {MOST_TAGS:,} tags, and no more may be made")
        _write(store, tags | {name: number})
        return number


def untag(store: Store, name: str) -> int:
    """Remove a tag; the generation it named, which stays."""
    with store.writing():
        number, tags = tagged(store, name), read_tags(store)
        _write(store, {other: generation for other, generation in tags.items() if other != name})
        return number


def tagged(store: Store, at: int | str) -> int:
    """The number of a generation that is given by number or by tag."""
    if isinstance(at, int) or (at.isascii() and at.isdigit()):
        return int(at)
    tags = read_tags(store)
    if at not in tags:
        raise UsageError(f"{store.folder} has no generation or tag {at[:MOST_TAG]!r}{suggest(at, tags)}")
    return tags[at]


def _write(store: Store, tags: dict[str, int]) -> None:
    path: Path = store.folder / TAGS_FILE
    with atomic_write(path) as file:
        file.write(sealed({"format": FORMAT, "written_by": __version__, "tags": tags}))
