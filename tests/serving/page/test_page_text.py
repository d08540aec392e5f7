"""The page in a real browser: nothing that a document holds ever runs; tokens are kept for this tab only."""

from __future__ import annotations

import json
from urllib.parse import quote

import served
from browsing import (
    HOSTILE,
    IMAGE,
    LINK,
    LONG,
    OTHER,
    QUERY,
    SCRIPT,
    VECTOR,
    Visitor,
    file,
    open_menu,
    search_for,
    show_tab,
    titles,
)
from playwright.sync_api import Page, expect


def check_nothing_ran(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("main :is(script, img, iframe, a), main [onload], main [onerror], main [onclick]").count() == 0


def test_text_of_documents_is_shown_and_never_run(hostile: served.Served, visit: Visitor) -> None:
    page = visit(hostile)
    expect(page.locator("h1")).to_have_text(IMAGE)
    expect(page.locator(".corpora th[scope=row]")).to_have_text(IMAGE)
    search_for(page, f"{SCRIPT} water {VECTOR}")
    expect(page).to_have_title(f"{SCRIPT} water {VECTOR} – {IMAGE}")
    assert set(titles(page).all_inner_texts()) == {*(f"{text} title" for text in HOSTILE), LONG}
    for text in HOSTILE:
        hit = page.locator(".hit").filter(has=page.locator(".title", has_text=text))
        expect(hit.locator(".docid")).to_have_text(f"{text} {LINK}")
        expect(hit.locator(".snippet")).to_contain_text(IMAGE)
        hit.get_by_test_id("why").click()
        expect(hit.locator("q")).to_have_text(f"{text} title water")
        expect(hit.get_by_role("list", name="Words in common")).to_contain_text("water")
        hit.locator(".title").click()
        dialog = page.get_by_role("dialog", name=f"{text} title")
        expect(dialog.locator(".text")).to_have_text(f"{text} water {IMAGE} tea {VECTOR}")
        expect(dialog.locator("dt")).to_have_text([IMAGE, "onclick"])
        expect(dialog.locator("dd")).to_have_text([text, json.dumps([SCRIPT])])
        page.keyboard.press("Escape")
    expect(page.locator(".why-panel .neighbors").first).to_contain_text("title")
    check_nothing_ran(page)


def test_text_of_documents_is_not_run_by_the_other_views_either(hostile: served.Served, visit: Visitor) -> None:
    page = visit(hostile, f"/?q={quote(VECTOR)}#token={served.WRITE}")
    show_tab(page, "versions")
    expect(page.locator(".versions .what")).to_contain_text(IMAGE)
    expect(page.locator(".ends title")).to_have_text(IMAGE)
    check_nothing_ran(page)
    show_tab(page, "add")
    page.get_by_test_id("files").set_input_files(file(f"{IMAGE}.txt", SCRIPT))
    expect(page.locator(".add")).to_contain_text(f"1 document in {IMAGE}.txt")
    page.get_by_label("Name of this collection").fill(IMAGE)  # which is taken
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("error")).to_contain_text(f"There is a collection named {IMAGE} already.")
    check_nothing_ran(page)


def test_a_token_is_requested_and_stored_in_this_tab_only(locked: served.Served, visit: Visitor) -> None:
    page = visit(locked, f"/?q={quote(QUERY)}", failures=[401, 403])
    expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    assert titles(page).count() == 0
    page.keyboard.type("a-token-that-is-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Another token is needed: the token is wrong")).to_be_visible()
    page.get_by_label("Token", exact=True).fill(served.READ)
    page.get_by_role("button", name="Use token").click()
    expect(titles(page)).to_have_count(10)
    expect(page.locator("#token-form")).to_be_hidden()
    page.reload()
    expect(titles(page)).to_have_count(10)
    assert served.READ not in page.url + page.evaluate("JSON.stringify({...localStorage}) + document.cookie")
    open_menu(page).click()
    expect(page.get_by_role("heading", name="Another token is needed: this token may read, not write")).to_be_visible()
    page.get_by_label("Token", exact=True).fill(served.WRITE)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("undo")).to_be_visible()


def test_a_token_leaves_the_address_bar_at_once(locked: served.Served, visit: Visitor) -> None:
    page = visit(locked, f"/?q={quote(QUERY)}#token={served.READ}")
    expect(titles(page)).to_have_count(10)
    assert page.url == f"{locked.url}/?q={quote(QUERY)}"
    assert served.READ not in page.evaluate("JSON.stringify({...localStorage}) + document.cookie + document.documentElement.outerHTML")
    page.get_by_test_id("tab-versions").click()
    page.go_back()
    assert served.READ not in page.url


def test_who_has_no_token_can_go_on_reading(server: served.Served, visit: Visitor) -> None:
    page = visit(server, failures=[401])
    search_for(page, QUERY)
    before = titles(page).all_inner_texts()
    open_menu(page).click()
    expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#token-form")).to_be_hidden()
    expect(page.get_by_test_id("error")).to_contain_text("This needs a token.")
    expect(page.locator(".leaving")).to_have_count(0)
    assert titles(page).all_inner_texts() == before
    search_for(page, OTHER)
