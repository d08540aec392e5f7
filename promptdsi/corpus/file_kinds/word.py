"""Word documents: headings, paragraphs, lists, tables and footnotes."""

from __future__ import annotations

import io
import zipfile
from xml.etree import ElementTree

from promptdsi.corpus.extract import Extract, check_archive, properties
from promptdsi.corpus.file_kinds.web import markdown_of

NAME = "word"
SUFFIXES = (".docx",)
PROPERTIES = "docProps/core.xml"


def extract(contents: bytes) -> Extract:
    import mammoth  # type: ignore[import-untyped]

    check_archive(contents)
    converted = mammoth.convert_to_html(io.BytesIO(contents), convert_image=mammoth.images.img_element(lambda image: {"src": ""}))
    title, metadata = properties(**_facts(contents))
    return Extract(markdown_of(converted.value), title, metadata)


def _facts(contents: bytes) -> dict[str, str | None]:
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        if PROPERTIES not in archive.namelist():
            return {}
        values = {element.tag.rpartition("}")[2]: element.text for element in ElementTree.fromstring(archive.read(PROPERTIES))}
    return {"title": values.get("title"), "author": values.get("creator"), "date": values.get("created")}
