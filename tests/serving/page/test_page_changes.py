"""The page in a real browser: generations, time travel, retention; adding, deleting and undoing."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psutil
import served
from browsing import (
    QUERY,
    TOKEN,
    Visitor,
    file,
    jsonl,
    names,
    search_for,
    show_tab,
    titles,
)
from playwright.sync_api import Route, expect
from reportlab.pdfgen.canvas import Canvas

from promptdsi import Corpus, Index
from promptdsi.serving.access import Access


def test_the_past_can_be_searched_and_left_again(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server, TOKEN)
    search_for(page, QUERY)
    expect(page.get_by_test_id("delete")).to_have_count(10)
    show_tab(page, "timeline")
    page.get_by_test_id("generation").first.click()
    expect(page.get_by_test_id("as-of")).to_contain_text("Searching as of generation 1; the index is now at 2.")
    show_tab(page, "search")
    expect(titles(page)).to_have_text(names(Index.open(original, at=1, device="cpu"), QUERY))
    expect(page.locator(".hit .badge")).to_have_text(["d0 generation 1"] * 10)
    expect(page.get_by_test_id("delete")).to_have_count(0)
    assert parse_qs(urlsplit(page.url).query)["at"] == ["1"]
    page.get_by_test_id("back-to-now").click()
    expect(page.get_by_test_id("as-of")).to_be_hidden()
    expect(titles(page)).to_have_text(names(Index.open(original, device="cpu"), QUERY))
    expect(page.get_by_test_id("delete")).to_have_count(10)
    assert "at" not in parse_qs(urlsplit(page.url).query)


def test_the_timeline_tells_every_kind_of_change(writable: served.Served, place: Path, corpora: list[Corpus], visit: Visitor) -> None:
    index = Index.open(place, device="cpu")
    first, second = (document.docid for document in corpora[0].documents[:2])
    index.add(corpora[2], fast=True)
    index.tune()
    index.delete([first, second])
    index.undelete(second)
    index.purge()
    earlier = corpora[1].documents[0]
    index.add(Corpus([earlier._replace(text=earlier.text + " And more."), *corpora[3].documents], name="corrected"), update=True)
    index.rollback(7)
    page = visit(writable, "/?tab=timeline")
    entries = page.get_by_test_id("generation")
    expect(entries).to_have_text(
        [
            re.compile(f"^Generation {number}{kind}{what}.*{documents} documents")
            for number, kind, what, documents in (
                (1, "create", "d0 21 added", 20),  # one of them has been erased from every generation by now
                (2, "add", "d1 3 added", 23),
                (3, "add", "d2 3 added", 26),
                (4, "tune", "trained", 26),
                (5, "delete", "2 deleted", 25),
                (6, "undelete", "1 restored", 26),
                (7, "purge", "1 erased", 26),
                (8, "add", r"corrected 4 added \(1 replaced\)", 29),
                (9, "rollback", "equal to generation 7", 26),
            )
        ]
    )
    expect(entries.last).to_have_attribute("aria-current", "true")
    expect(entries.last).to_be_in_viewport()  # the newest is at the foot, and shown first


def test_retention_is_shown_as_a_chart_and_a_table(server: served.Served, visit: Visitor) -> None:
    page = visit(server, "/?tab=timeline")
    records = served_records(server)
    assert [(record["generation"], record["corpus"]) for record in records] == [(1, "d0"), (2, "d0"), (2, "d1")]
    for metric, label in (("hits10", "Hits@10"), ("hits1", "Hits@1")):
        page.get_by_text(label, exact=True).first.click()
        marks = page.locator(".series .mark")
        expect(marks).to_have_count(3)
        labels = {mark.get_attribute("aria-label") for mark in marks.all()}
        assert labels == {
            f"{record['corpus']}, generation {record['generation']}: {label} {record[metric] * 100:.1f} % of {record['n']} queries"
            for record in records
        }
    page.get_by_text("The same as a table").click()
    expect(page.locator("#retention tbody tr")).to_have_count(2)


def served_records(server: served.Served) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = server.client.get("/api/retention").json()["records"]
    return sorted(records, key=lambda record: (record["generation"], record["corpus"]))


def test_another_writers_generation_is_noticed_and_nothing_moves_under_the_readers_eyes(
    writable: served.Served, place: Path, visit: Visitor
) -> None:
    page, other = visit(writable), visit(writable, "/?tab=timeline")
    search_for(page, QUERY)
    before = titles(page).all_inner_texts()
    other.get_by_test_id("generation").first.focus()
    Index.open(place, device="cpu").delete(page.locator(".hit .docid").first.inner_text())
    expect(page.locator("#size")).to_have_text("23 documents · generation 3")
    expect(page.locator("#live")).to_have_text("The index is now at generation 3.")
    assert titles(page).all_inner_texts() == before
    page.get_by_role("button", name="Search again").click()
    expect(titles(page).first).to_have_text(before[1])
    expect(other.get_by_test_id("generation")).to_have_count(3)
    expect(other.get_by_test_id("generation").first).to_be_focused()


def test_json_lines_are_added_with_progress_that_a_reload_finds_again(
    writable: served.Served, corpora: list[Corpus], visit: Visitor
) -> None:
    page = visit(writable, f"/?tab=add#token={served.WRITE}")
    page.get_by_test_id("files").set_input_files(file("news.jsonl", jsonl(corpora[2].documents)))
    expect(page.locator(".add")).to_contain_text("3 documents in news.jsonl")
    expect(page.get_by_label("Name of this corpus")).to_have_value("news")
    page.get_by_test_id("start-add").click()
    expect(page.get_by_role("progressbar", name="Adding news")).to_be_visible()
    with held_worker():
        page.reload()
        expect(page.get_by_role("progressbar", name="Adding news")).to_be_visible()
        expect(page.get_by_test_id("progress")).to_be_in_viewport(ratio=1)
    report = page.get_by_test_id("report")
    expect(report).to_contain_text("news is in the index")
    expect(report.locator("dd").first).to_have_text("3")  # the generation
    expect(page.locator("#size")).to_have_text("27 documents · generation 3")
    search_for(page, corpora[2].documents[0].title)
    page.get_by_role("button", name="Show more").click()
    added = page.locator(".hit", has_text=corpora[2].documents[0].docid)
    expect(added.locator(".badge")).to_have_text("news generation 3")


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
    page.get_by_label("Name of this corpus").fill("notes")
    page.get_by_label("Add without training (fast)").check()
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("report")).to_contain_text("notes is in the index")
    expect(page.get_by_test_id("report")).to_contain_text("These documents are not trained yet")
    expect(page.get_by_test_id("report")).to_be_in_viewport(ratio=1)
    expect(page.get_by_test_id("start-add")).to_be_disabled()  # nothing is left to send
    document = writable.client.get("/api/documents/canal.md").json()
    assert (document["title"], document["corpus"]) == ("Canal locks", "notes")
    assert writable.client.get("/api/documents/tea.txt").json()["title"] == "tea"


def test_a_pdf_is_read_by_the_server_and_shown_before_it_is_added(writable: served.Served, visit: Visitor) -> None:
    canvas = Canvas(contents := io.BytesIO())
    for page_text in ("Green tea wants water of 75 degrees.", "A lock lifts boats from level to level."):
        canvas.drawString(72, 720, page_text)
        canvas.showPage()
    canvas.save()
    page = visit(writable, f"/?tab=add#token={served.WRITE}", failures=[422])
    broken = {"name": "broken.docx", "mimeType": "application/octet-stream", "buffer": b"no zip at all"}
    page.get_by_test_id("files").set_input_files(
        [{"name": "canal.pdf", "mimeType": "application/pdf", "buffer": contents.getvalue()}, broken]  # type: ignore[list-item]
    )
    expect(page.get_by_test_id("preview")).to_contain_text("Green tea wants water")
    expect(page.get_by_test_id("preview")).to_contain_text("Not added: the file broken.docx")
    page.get_by_label("Add without training (fast)").check()
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("report")).to_contain_text("is in the index")
    assert writable.client.get("/api/documents/canal.pdf").json()["metadata"]["pages"] == [0, 38]


def test_a_document_learns_the_query_it_was_right_for(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, f"/?q=zanzibar+quartz#token={served.WRITE}")
    hit = page.get_by_test_id("hit").nth(3)
    docid = hit.locator(".docid").text_content()
    hit.get_by_test_id("right").click()
    expect(page.get_by_test_id("hit").first.locator(".docid")).to_have_text(str(docid))
    assert writable.client.get("/api/generations").json()["generations"][-1]["corrections"] == 1


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
    expect(page.get_by_test_id("delete")).to_have_count(0)
    paused[0].continue_()
    expect(page.get_by_test_id("delete")).to_have_count(10)


def test_deleting_and_undoing_by_keyboard_alone(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, TOKEN)
    page.keyboard.type(QUERY)
    expect(titles(page)).to_have_count(10)
    before = titles(page).all_inner_texts()
    for key in ("ArrowDown", "ArrowDown", "Tab", "Tab", "Tab"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name=f"Delete {before[1]}")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("undo")).to_be_focused()
    expect(page.locator(".toast")).to_contain_text(f"Deleted {before[1]}.")
    expect(titles(page).nth(1)).to_have_text(before[2])
    expect(page.locator("#size")).to_have_text("23 documents · generation 3")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(before)
    expect(page.locator("#size")).to_have_text("24 documents · generation 4")
    expect(page.get_by_test_id("query")).to_be_focused()
    expect(page.locator("#live")).to_have_text(f"{before[1]} is back.")


def test_a_server_that_only_reads_offers_no_writing(place: Path, visit: Visitor) -> None:
    with served.serving(place, access=Access()) as running, visit.open:
        page = visit(running)
        search_for(page, QUERY)
        expect(page.get_by_test_id("delete")).to_have_count(0)
        page.get_by_test_id("tab-add").click()
        expect(page.locator("#add-body")).to_contain_text("This server only reads.")
