"""EPUB books: the chapters in reading order. A chapter counts as a page."""

from __future__ import annotations

import io
import posixpath
import zipfile
from urllib.parse import unquote
from xml.etree import ElementTree

from promptdsi.corpus.extract import Extract, check_archive, joined_pages, properties
from promptdsi.corpus.file_kinds.web import decode_page, markdown_of
from promptdsi.wording import agreeing

NAME = "book"
SUFFIXES = (".epub",)
CONTAINER = "META-INF/container.xml"


def extract(contents: bytes) -> Extract:
    check_archive(contents)
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        try:
            root = next(element for element in ElementTree.fromstring(archive.read(CONTAINER)).iter() if element.tag.endswith("rootfile"))
            package_path = root.attrib["full-path"]
            package = ElementTree.fromstring(archive.read(package_path))
            items = {item.attrib["id"]: item.attrib["href"] for item in package.iter() if item.tag.endswith("}item")}
            order = [items[item.attrib["idref"]] for item in package.iter() if item.tag.endswith("}itemref")]
        except (KeyError, StopIteration, ElementTree.ParseError) as error:
            raise ValueError(f"is no EPUB book: {error or 'it names no contents'}") from None
        folder = posixpath.dirname(package_path)
        names = [posixpath.normpath(posixpath.join(folder, unquote(name))) for name in order]
        present = set(archive.namelist())
        chapters = [markdown_of(decode_page(archive.read(name))[0]) for name in names if name in present]
    facts = {element.tag.rpartition("}")[2]: element.text for element in package.iter() if "purl.org/dc" in element.tag}
    title, metadata = properties(title=facts.get("title"), author=facts.get("creator"), date=facts.get("date"))
    text, pages = joined_pages([chapter for chapter in chapters if chapter])
    missing = sum(name not in present for name in names)
    return Extract(text, title, metadata, pages, [agreeing(missing, "chapters are missing")] if missing else [])
