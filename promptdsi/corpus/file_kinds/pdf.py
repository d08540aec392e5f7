"""PDF files: the text of each page."""

from __future__ import annotations

import contextlib

from promptdsi.corpus.extract import Extract, joined_pages, properties
from promptdsi.wording import counted

NAME = "pdf"
SUFFIXES = (".pdf",)


def extract(contents: bytes) -> Extract:
    import pypdfium2  # type: ignore[import-untyped]

    try:
        file = pypdfium2.PdfDocument(contents)
    except pypdfium2.PdfiumError as error:
        raise ValueError("is encrypted: remove its password first" if "assword" in str(error) else "is no PDF file") from None
    texts = []
    for number in range(len(file)):
        text = ""
        with contextlib.suppress(pypdfium2.PdfiumError):  # a broken page is one without text
            text = file[number].get_textpage().get_text_bounded()
        # PDFium marks the hyphen of a word that a line break divides: without the mark the word is whole again.
        texts.append(text.replace("\r\n", "\n").replace("\x02", "").replace("\ufffe", "").strip())
    if not any(texts):
        raise ValueError("holds no text; if it is a scan, its text must be recognised (OCR) first")
    text, pages = joined_pages(texts)
    facts = file.get_metadata_dict()
    title, metadata = properties(title=facts.get("Title"), author=facts.get("Author"), date=facts.get("CreationDate"))
    empty = sum(not page for page in texts)
    return Extract(text, title, metadata, pages, [f"{counted(empty, 'page')} without text"] if empty else [])
