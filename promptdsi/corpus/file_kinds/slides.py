"""PowerPoint presentations: the text of each slide, its tables and the speaker's notes. A slide counts as a page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from promptdsi.corpus.extract import Extract, check_archive, joined_pages, properties

NAME = "slides"
SUFFIXES = (".pptx",)


def extract(contents: bytes) -> Extract:
    from pptx import Presentation

    check_archive(contents)
    presentation = Presentation(io.BytesIO(contents))
    slides = []
    for slide in presentation.slides:
        heading = slide.shapes.title.text_frame.text.strip() if slide.shapes.title is not None else ""
        title_id = slide.shapes.title.shape_id if slide.shapes.title is not None else None
        parts = [f"## {' '.join(heading.split())}"] if heading else []
        parts += [text for text in _texts(slide.shapes, title_id) if text.strip()]
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            parts.append(slide.notes_slide.notes_text_frame.text)
        slides.append("\n\n".join(part for part in parts if part.strip()))
    facts = presentation.core_properties
    title, metadata = properties(title=facts.title, author=facts.author, date=facts.created)
    text, pages = joined_pages(slides)
    return Extract(text, title, metadata, pages)


def _texts(shapes: Iterable[Any], title_id: int | None) -> Iterator[str]:
    for shape in shapes:
        if shape.shape_id == title_id:
            continue
        if hasattr(shape, "shapes"):  # a group
            yield from _texts(shape.shapes, title_id)
        elif shape.has_text_frame:
            yield shape.text_frame.text.replace("\v", "\n")
        elif getattr(shape, "has_table", False):
            yield "\n".join(" | ".join(cell.text for cell in row.cells) for row in shape.table.rows)
