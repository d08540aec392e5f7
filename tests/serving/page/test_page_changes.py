"""The page in a real browser: adding, teaching, deleting and undoing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import served
from browsing import (
    QUERY,
    TOKEN,
    Visitor,
    file,
    jsonl,
    pdf,
    search_for,
    titles,
)
from playwright.sync_api import Route, expect

from promptdsi import Corpus, Index
from promptdsi.serving.access import Access


def test_json_lines_are_added_with_progress_that_a_reload_finds_again(
    writable: served.Served, corpora: list[Corpus], visit: Visitor
) -> None:
    page = visit(writable, f"/?tab=add#token={served.WRITE}")
    page.get_by_test_id("files").set_input_files(file("news.jsonl", jsonl(corpora[2].documents)))
    expect(page.locator(".add")).to_contain_text("3 documents in news.jsonl")
    expect(page.get_by_label("Name of this collection")).to_have_value("news")
    page.get_by_test_id("start-add").click()
    expect(page.get_by_role("progressbar", name="Adding news")).to_be_visible()
    with held_worker():
        page.reload()
        expect(page.get_by_role("progressbar", name="Adding news")).to_be_visible()
        expect(page.get_by_test_id("progress")).to_be_in_viewport(ratio=1)
    report = page.get_by_test_id("report")
    expect(report).to_contain_text("news can be searched now")
    expect(report.locator("dd").first).to_have_text("3 new; this is version 3")
    expect(page.locator("#size")).to_have_text("27 documents · version 3")
    search_for(page, corpora[2].documents[0].title)
    page.get_by_role("button", name="Show more").click()
    added = page.locator(".hit", has_text=corpora[2].documents[0].docid)
    expect(added.locator(".badge")).to_have_text("collection news")


@contextlib.contextmanager
def held_worker() -> Iterator[None]:
    """The process that learns, stopped for a while: whatever happens meanwhile happens during a job."""
    end = time.monotonic() + 60
    while not (workers := [child for child in psutil.Process().children() if "promptdsi.serving.job_process" in " ".join(child.cmdline())]):
        assert time.monotonic() < end
    workers[0].suspend()
    try:
        yield
    finally:
        workers[0].resume()


def test_text_files_are_added_with_their_names_and_headings(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, f"/?tab=add#token={served.WRITE}")
    page.get_by_test_id("files").set_input_files(
        [
            file("tea.txt", "Green tea wants water of 75 degrees."),
            file("canal.md", "# Canal locks\n\nA lock lifts boats from level to level."),
        ]
    )
    expect(page.locator(".add")).to_contain_text("2 documents in 2 files")
    page.get_by_label("Name of this collection").fill("notes")
    page.get_by_label("Add quickly").check()
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("report")).to_contain_text("notes can be searched now")
    expect(page.get_by_test_id("report")).to_contain_text("are not trained yet")
    expect(page.get_by_test_id("report")).to_be_in_viewport(ratio=1)
    expect(page.get_by_test_id("start-add")).to_be_disabled()  # nothing is left to send
    document = writable.client.get("/api/documents/canal.md").json()
    assert (document["title"], document["corpus"]) == ("Canal locks", "notes")
    assert writable.client.get("/api/documents/tea.txt").json()["title"] == "tea"


def test_a_pdf_is_read_by_the_server_and_shown_before_it_is_added(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, f"/?tab=add#token={served.WRITE}", failures=[422])
    canal = pdf("Green tea wants water of 75 degrees.", "A lock lifts boats from level to level.")
    page.get_by_test_id("files").set_input_files([file("canal.pdf", canal), file("broken.docx", "no zip at all")])
    expect(page.get_by_test_id("preview")).to_contain_text("canal.pdf · 2 pages · 15 words")
    expect(page.get_by_test_id("preview")).to_contain_text("Green tea wants water")
    expect(page.get_by_test_id("preview")).to_contain_text("Not added: the file broken.docx")
    page.get_by_label("Add quickly").check()
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("report")).to_contain_text("can be searched now")
    assert writable.client.get("/api/documents/canal.pdf").json()["metadata"]["pages"] == [0, 38]
    search_for(page, "lock lifts boats")
    expect(page.locator(".hit", has_text="canal.pdf").locator(".place").first).to_have_text(
        "page 2"
    )  # where the words stand, not where the passage begins


def test_a_document_learns_the_query_it_was_right_for(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, f"/?q=zanzibar+quartz#token={served.WRITE}")
    hit = page.get_by_test_id("hit").nth(3)
    docid = hit.locator(".docid").text_content()
    hit.get_by_test_id("right").click()
    expect(page.get_by_test_id("hit").first.locator(".docid")).to_have_text(str(docid))
    expect(page.locator(".toast")).to_contain_text("is right for “zanzibar quartz”. It was in place 4 and is now in place 1.")
    assert writable.client.get("/api/generations").json()["generations"][-1]["corrections"] == 1
    page.get_by_test_id("undo").click()
    expect(page.get_by_test_id("hit").nth(3).locator(".docid")).to_have_text(str(docid))
    expect(page.locator("#live")).to_have_text("Undone.")


def test_undo_does_not_take_back_what_someone_else_did_since(writable: served.Served, place: Path, visit: Visitor) -> None:
    page = visit(writable, f"/?q=zanzibar+quartz#token={served.WRITE}")
    page.get_by_test_id("right").nth(3).click()
    expect(page.get_by_test_id("undo")).to_be_visible()
    Index.open(place, device="cpu").delete(page.locator(".hit .docid").last.inner_text())
    served.wait_until(lambda: writable.client.get("/api/index").json()["generation"] == 4)
    page.get_by_test_id("undo").click()
    expect(page.locator(".toast")).to_contain_text("There has been another change since.")
    assert writable.client.get("/api/index").json()["generation"] == 4


def test_a_mistake_in_a_file_is_shown_with_its_line_and_nothing_is_added(server: served.Served, visit: Visitor) -> None:
    page = visit(server, f"/?tab=add#token={served.WRITE}", failures=[422])
    page.get_by_test_id("files").set_input_files(file("broken.jsonl", '{"_id": "x", "text": "one"}\n{"_id": "y"\n'))
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("error")).to_contain_text("Line 2, column")
    expect(page.get_by_test_id("error")).to_contain_text("Nothing was added.")
    page.get_by_test_id("files").set_input_files(file("picture.png", "no text"))
    expect(page.get_by_test_id("error")).to_contain_text("The file picture.png is no kind of file that is read: .csv, .docx,")
    expect(page.get_by_test_id("start-add")).to_be_disabled()
    assert server.client.get("/api/jobs").json() == {"jobs": []}


def test_hits_that_come_before_anything_is_known_of_the_index_can_be_deleted_too(server: served.Served, visit: Visitor) -> None:
    page = visit(server, f"/?q={quote(QUERY)}")
    paused: list[Route] = []
    page.route("**/api/index", lambda route: paused.append(route))  # Playwright takes no built-in method
    page.reload()
    expect(titles(page)).to_have_count(10)
    expect(page.get_by_test_id("menu")).to_have_count(0)
    paused[0].continue_()
    expect(page.get_by_test_id("menu")).to_have_count(10)


def test_delete_is_never_under_the_pointer(server: served.Served, visit: Visitor) -> None:
    page = visit(server, f"/?q={quote(QUERY)}#token={served.WRITE}")
    menu, delete = page.get_by_test_id("menu").first, page.get_by_test_id("delete").first
    expect(delete).to_be_hidden()
    menu.click()
    expect(delete).to_be_visible()
    menu.click()  # the pointer has not moved: a second click closes the menu, and deletes nothing
    expect(delete).to_be_hidden()
    menu.click()
    titles(page).last.focus()
    expect(delete).to_be_hidden()
    expect(titles(page)).to_have_count(10)


def test_deleting_and_undoing_by_keyboard_alone(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, TOKEN)
    page.keyboard.type(QUERY)
    expect(titles(page)).to_have_count(10)
    before = titles(page).all_inner_texts()
    for key in ("ArrowDown", "ArrowDown", "Tab", "Tab", "Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name=f"Delete {before[1]}")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("undo")).to_be_focused()
    expect(page.locator(".toast")).to_contain_text(f"Deleted {before[1]}.")
    expect(titles(page).nth(1)).to_have_text(before[2])
    expect(page.locator("#size")).to_have_text("23 documents · version 3")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(before)
    expect(page.locator("#size")).to_have_text("24 documents · version 4")
    expect(page.get_by_test_id("query")).to_be_focused()
    expect(page.locator("#live")).to_have_text(f"{before[1]} is back.")


def test_a_server_that_only_reads_offers_no_writing(place: Path, visit: Visitor) -> None:
    with served.serving(place, access=Access()) as running, visit.open:
        page = visit(running)
        search_for(page, QUERY)
        expect(page.get_by_test_id("menu")).to_have_count(0)
        expect(page.get_by_test_id("right")).to_have_count(0)
        page.get_by_test_id("tab-versions").click()
        expect(page.get_by_test_id("search-version")).to_have_count(1)
        expect(page.get_by_test_id("go-back")).to_have_count(0)
        page.get_by_test_id("tab-add").click()
        expect(page.locator("#add-body")).to_contain_text("Documents cannot be added here.")
