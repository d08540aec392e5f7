"""How the tests of the page look at it: a visitor who writes down complaints, and what visitors do again and again."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from typing import Any

import served
import small
from playwright.sync_api import Browser, ConsoleMessage, FilePayload, Locator, Page, Request, WebError, expect
from reportlab.pdfgen.canvas import Canvas

from promptdsi import Document, Index

QUERY, OTHER = small.QUERIES[1], small.QUERIES[2]
NOTHING = "zzyzx qwerty"  # no document is about it
TOKEN = f"/#token={served.WRITE}"
VIEWS = {"search": [".hit .origin .key"], "versions": [".versions", ".series .mark"], "add": [".add"]}
SCRIPT, IMAGE, VECTOR, LINK = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
)
HOSTILE = (SCRIPT, IMAGE, VECTOR, LINK)
LONG = "W" * 300


class Visitor:
    """Opens the page, each time in a browser that has never seen it, and writes down whatever the browser complains of."""

    def __init__(self, browser: Browser) -> None:
        self.browser, self.open, self.complaints = browser, contextlib.ExitStack(), list[str]()

    def __call__(self, server: served.Served, address: str = "/", *, failures: Sequence[int] = (), **options: Any) -> Page:
        """The page at an address. `failures` are the statuses that requests of this test end with on purpose."""
        context = self.open.enter_context(contextlib.closing(self.browser.new_context(reduced_motion="reduce", **options)))
        expected = tuple(f"Failed to load resource: the server responded with a status of {status} " for status in failures)

        def note_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not message.text.startswith(expected):
                self.complaints.append(f"console: {message.text}")

        def note_error(error: WebError) -> None:
            self.complaints.append(f"error: {error.error}")

        def note_request(request: Request) -> None:
            if not request.url.startswith((f"{server.url}/", "data:")):
                self.complaints.append(f"another host: {request.url}")

        context.on("console", note_console)
        context.on("weberror", note_error)
        context.on("request", note_request)
        page = context.new_page()
        page.goto(server.url + address)
        return page


def search_for(page: Page, query: str) -> None:
    """Type a query and wait for its own answer."""
    with page.expect_response(lambda answer: json.dumps(query) in (answer.request.post_data or "")):
        page.get_by_test_id("query").fill(query)
    expect(page.locator("body.searching")).to_have_count(0)


def titles(page: Page) -> Locator:
    return page.locator(".hit .title")


def names(index: Index, query: str, k: int = 10) -> list[str]:
    return [hit.title or hit.docid for hit in index.search(query, k=k)]


def file(name: str, content: str | bytes) -> FilePayload:
    contents = content if isinstance(content, bytes) else content.encode()
    return FilePayload(name=name, mimeType="application/octet-stream", buffer=contents)


def jsonl(documents: Sequence[Document]) -> str:
    return "".join(json.dumps({"_id": document.docid, "title": document.title, "text": document.text}) + "\n" for document in documents)


def open_menu(page: Page, place: int = 0) -> Locator:
    """The button "Delete" of a result, after opening the menu that has it."""
    hit = page.get_by_test_id("hit").nth(place)
    hit.get_by_test_id("menu").click()
    return hit.get_by_test_id("delete")


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page."""
    canvas = Canvas(contents := io.BytesIO())
    for text in pages:
        canvas.drawString(72, 720, text)
        canvas.showPage()
    canvas.save()
    return contents.getvalue()


def show_tab(page: Page, tab: str) -> None:
    page.get_by_test_id(f"tab-{tab}").click()
    filled(page, tab)


def filled(page: Page, tab: str) -> None:
    """Wait until a view shows what it has to show: nothing will move by itself any more."""
    expect(page.locator("#size")).to_contain_text("version")
    for part in VIEWS[tab]:
        expect(page.locator(part).first).to_be_visible()
