"""The page in a real browser: versions, searching an earlier one and going back to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import served
from browsing import (
    QUERY,
    TOKEN,
    Visitor,
    names,
    search_for,
    show_tab,
    titles,
)
from playwright.sync_api import expect

from promptdsi import Corpus, Index


def test_the_past_can_be_searched_and_left_again(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server, TOKEN)
    search_for(page, QUERY)
    expect(page.get_by_test_id("menu")).to_have_count(10)
    show_tab(page, "versions")
    page.get_by_role("button", name="Search this version: version 1").click()
    expect(page.get_by_test_id("as-of")).to_contain_text("You are searching version 1. The present one is version 2.")
    expect(titles(page)).to_have_text(names(Index.open(original, at=1, device="cpu"), QUERY))
    expect(page.locator(".hit .badge")).to_have_text(["collection d0"] * 10)
    expect(page.get_by_test_id("menu")).to_have_count(0)
    assert parse_qs(urlsplit(page.url).query)["at"] == ["1"]
    page.get_by_test_id("back-to-now").click()
    expect(page.get_by_test_id("as-of")).to_be_hidden()
    expect(titles(page)).to_have_text(names(Index.open(original, device="cpu"), QUERY))
    expect(page.get_by_test_id("menu")).to_have_count(10)
    assert "at" not in parse_qs(urlsplit(page.url).query)


def test_versions_say_what_changed(writable: served.Served, place: Path, corpora: list[Corpus], visit: Visitor) -> None:
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
    page = visit(writable, "/?tab=versions")
    expect(page.get_by_test_id("version")).to_have_text(
        [
            re.compile(rf"^{what}Version {number}( \(now\))? · {documents} documents")
            for number, what, documents in (
                (9, "Went back to version 7", 26),
                (8, "3 documents added, 1 document replaced: corrected", 29),
                (7, "1 document erased", 26),
                (6, "1 document restored", 26),
                (5, "2 documents deleted", 25),
                (4, "Trained on documents that were added quickly", 26),
                (3, "3 documents added: d2", 26),
                (2, "3 documents added: d1", 23),
                (1, "21 documents added: d0", 20),  # one of them has been erased from every version by now
            )
        ]
    )
    expect(page.get_by_test_id("version").first).to_have_attribute("aria-current", "true")


def test_how_well_old_documents_are_found_is_shown_as_a_chart_and_a_table(server: served.Served, visit: Visitor) -> None:
    page = visit(server, "/?tab=versions")
    records = served_records(server)
    assert [(record["generation"], record["corpus"]) for record in records] == [(1, "d0"), (2, "d0"), (2, "d1")]
    for metric, label, place in (("hits10", "In the first ten", "found in the first ten"), ("hits1", "First", "found first")):
        page.get_by_text(label, exact=True).first.click()
        marks = page.locator(".series .mark")
        expect(marks).to_have_count(3)
        labels = {mark.get_attribute("aria-label") for mark in marks.all()}
        assert labels == {
            f"{record['corpus']}, version {record['generation']}: {record[metric] * 100:.1f} % of {record['n']} questions {place}"
            for record in records
        }
    page.get_by_text("The same as a table").click()
    expect(page.locator("#retention tbody tr")).to_have_count(2)


def served_records(server: served.Served) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = server.client.get("/api/retention").json()["records"]
    return sorted(records, key=lambda record: (record["generation"], record["corpus"]))


def test_another_writers_change_is_noticed_and_nothing_moves_under_the_readers_eyes(
    writable: served.Served, place: Path, visit: Visitor
) -> None:
    page, other = visit(writable), visit(writable, "/?tab=versions")
    search_for(page, QUERY)
    before = titles(page).all_inner_texts()
    first = other.get_by_role("button", name="Search this version: version 1")
    first.focus()
    Index.open(place, device="cpu").delete(page.locator(".hit .docid").first.inner_text())
    expect(page.locator("#size")).to_have_text("23 documents · version 3")
    expect(page.locator("#live")).to_have_text("There is a new version: 3.")
    assert titles(page).all_inner_texts() == before
    page.get_by_role("button", name="Search again").click()
    expect(titles(page).first).to_have_text(before[1])
    expect(other.get_by_test_id("version")).to_have_count(3)
    expect(first).to_be_focused()


def test_going_back_to_a_version_is_confirmed_and_can_be_undone(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, f"/?tab=versions#token={served.WRITE}")
    dialog, back = (
        page.get_by_role("dialog", name="Go back to version 1?"),
        page.get_by_role("button", name="Go back to this version: version 1"),
    )
    back.click()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    back.click()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#size")).to_have_text("24 documents · version 2")
    back.click()
    expect(dialog).to_contain_text("21 documents will be found, as then.")
    page.get_by_test_id("agree").click()
    expect(page.locator("#size")).to_have_text("21 documents · version 3")
    expect(page.get_by_test_id("version").first).to_contain_text("Went back to version 1")
    page.get_by_test_id("undo").click()
    expect(page.locator("#size")).to_have_text("24 documents · version 4")
    expect(page.get_by_test_id("version").first).to_contain_text("Went back to version 2")
