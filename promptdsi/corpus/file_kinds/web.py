"""Web pages: all of their visible text as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from promptdsi.corpus.decoding import decode_named
from promptdsi.corpus.extract import Extract, properties

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

NAME = "web"
SUFFIXES = (".html", ".htm", ".xhtml")
INVISIBLE = ("script", "style", "template", "noscript", "head")
DATES = ("article:published_time", "date", "dcterms.date", "dc.date")


def extract(contents: bytes) -> Extract:
    source, notes = decode_page(contents)
    page = _parsed(source)
    described = {str(meta.get("name") or meta.get("property") or "").lower(): str(meta.get("content") or "") for meta in page("meta")}
    date = next((described[name] for name in DATES if described.get(name)), "")
    title, metadata = properties(title=page.title.string if page.title else "", author=described.get("author"), date=date)
    return Extract(_markdown(page), title, metadata, notes=notes)


def decode_page(contents: bytes) -> tuple[str, list[str]]:
    """The source of a page, and a note if its encoding had to be recognised: the parser would replace what it cannot decode."""
    from bs4.dammit import EncodingDetector

    return decode_named(contents, EncodingDetector.find_declared_encoding(contents, is_html=True) or "utf-8")


def markdown_of(source: str) -> str:
    """The visible text of a page, its headings, lists and tables as Markdown."""
    return _markdown(_parsed(source))


def _parsed(source: str) -> BeautifulSoup:
    from bs4 import BeautifulSoup

    return BeautifulSoup(source, "lxml")


def _markdown(page: BeautifulSoup) -> str:
    from markdownify import MarkdownConverter

    for element in page(INVISIBLE):
        element.decompose()
    converter = MarkdownConverter(
        heading_style="ATX", strip=["a", "img"], escape_asterisks=False, escape_underscores=False, escape_misc=False
    )
    try:
        text = converter.convert_soup(page)
    except RecursionError:  # elements nested by the thousand: the text without its structure
        text = page.get_text("\n")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()
