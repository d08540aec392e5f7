"""Jupyter notebooks: text and code of the cells, and what they printed."""

from __future__ import annotations

import json
from typing import Any

from promptdsi.corpus.extract import Extract
from promptdsi.wording import counted

NAME = "notebook"
SUFFIXES = (".ipynb",)


def extract(contents: bytes) -> Extract:
    try:
        notebook = json.loads(contents.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"is no notebook: {error}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("is no notebook of version 4: it has no list of cells")
    parts, images = [], 0
    for cell in cells:
        text = _text(cell.get("source", ""))
        parts.append(text if cell.get("cell_type") == "markdown" else f"```\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            images += any(kind.startswith("image/") for kind in data)
            parts.append(_text(output.get("text", data.get("text/plain", ""))))
    notes = [f"{counted(images, 'image')} of output not read"] if images else []
    return Extract("\n\n".join(part for part in parts if part.strip("`\n ")), notes=notes)


def _text(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value)
