"""Pictures of the page's main views for the docs, taken from a real server over a copy of an index.

    python -m tools.docs.build_screenshots [INDEX]     # as `make demo` leaves it; writes docs/figures/page-*.png

Needs Chromium (`apt-get install chromium`) and Playwright's Python package, which `make test` installs.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, FilePayload, Page, ViewportSize, expect, sync_playwright
from reportlab.pdfgen.canvas import Canvas

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = ViewportSize(width=1280, height=880), ViewportSize(width=390, height=844)
MOST_BYTES = 150_000  # a picture above this has no place in a repository
BATS, JET = "how do bats find their way in the dark", "why does the jet stream bend"
MARGIN = 24
NOTHING = "which form do I need to renew a passport"
LEAFLET = (
    "The tide mill",
    "A tide mill shuts its gates at high water and lets the pond run out through the wheel at low water.",
    "The miller worked by the moon, fifty minutes later every day, and slept when the sea allowed it.",
    "Visitors are welcome on Saturdays from April to October; the wheel turns for two hours around low water.",
)
NOTES = (
    "# Keeping a sourdough starter\n\nFlour and water left in a jar gather wild yeast. Fed once a day, the starter doubles in some hours."
)


def main() -> int:
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "promptdsi-demo/index")
    if not (source / "CURRENT").is_file():
        print(f"{source} is no index; `make demo` makes one", file=sys.stderr)
        return 2
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 2
    expect.set_options(timeout=120_000)  # milliseconds; opening takes some seconds
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        index = shutil.copytree(source, Path(folder) / "demo")  # the page shows the folder's name
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        with served(index) as url, contextlib.closing(browser):
            take_all(browser, url)
    return 0


@contextlib.contextmanager
def served(index: Path) -> Iterator[str]:
    """`promptdsi serve` with leave to write; its address, token and all."""
    command = [sys.executable, "-m", "promptdsi", "serve", str(index), "--port", "0", "--allow-write"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        yield server.stderr.readline().partition(" on ")[2].split()[0]
    finally:
        server.terminate()
        server.wait()


def take_all(browser: Browser, url: str) -> None:
    """Every picture: six states, the last on a phone in the dark."""
    with opened(browser, url, DESK) as page:
        search_for(page, BATS)
        take(page, "search", within=".hit")
        search_for(page, JET)
        page.get_by_test_id("why").first.click()
        expect(page.get_by_test_id("why-panel").first).to_contain_text("Similar documents")
        take(page, "why", within=".hit")
        search_for(page, NOTHING)
        take(page, "nothing", within=".hit")
        page.get_by_test_id("tab-versions").click()
        expect(page.locator(".chart svg")).to_be_visible()
        take(page, "versions", within=".versions li, .retention", margin=0)
        page.get_by_test_id("tab-add").click()
        page.get_by_test_id("files").set_input_files(
            [
                FilePayload(name="tide-mill.pdf", mimeType="application/pdf", buffer=leaflet()),
                FilePayload(name="sourdough.md", mimeType="text/markdown", buffer=NOTES.encode()),
            ]
        )
        expect(page.get_by_test_id("preview")).to_contain_text("tide-mill.pdf")
        take(page, "add", within=".add > *", top="#view-add")
    with opened(browser, url, PHONE, color_scheme="dark") as page:
        search_for(page, BATS)
        page.get_by_test_id("query").blur()  # with focus it shows the end of the question
        take(page, "phone", within=".hit")


def leaflet() -> bytes:
    """A PDF of two pages, as somebody might drop it on the page."""
    canvas = Canvas(contents := io.BytesIO())
    canvas.setTitle(LEAFLET[0])
    for lines in (LEAFLET[:3], LEAFLET[3:]):
        for place, line in enumerate(lines):
            canvas.drawString(72, 720 - 20 * place, line)
        canvas.showPage()
    canvas.save()
    return contents.getvalue()


@contextlib.contextmanager
def opened(browser: Browser, url: str, size: ViewportSize, color_scheme: Literal["light", "dark"] = "light") -> Iterator[Page]:
    """The page with an index behind it, in a browser that has never seen it."""
    context = browser.new_context(viewport=size, color_scheme=color_scheme, reduced_motion="reduce", locale="en-GB", timezone_id="UTC")
    with contextlib.closing(context):
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#size")).to_contain_text("documents")
        yield page


def search_for(page: Page, query: str) -> None:
    """Type a query and wait until its results are shown with the shares of meaning and words, which come last."""
    with page.expect_response(lambda answer: query in (post := answer.request.post_data or "") and '"explain":true' in post):
        page.get_by_test_id("query").fill(query)
    expect(page.locator(".origin .key").first).to_be_visible()


def take(page: Page, name: str, *, within: str, top: str = "body", margin: int = MARGIN) -> None:
    """A picture from the top of one element to the end of the last of others that the window shows whole."""
    size = page.viewport_size
    assert size is not None
    page.mouse.move(0, 0)  # nothing looks as if somebody were pointing at it
    page.locator(top).evaluate(f"element => scrollTo(0, element.offsetTop - {MARGIN})")
    boxes = [box for each in page.locator(within).all() if (box := each.bounding_box())]
    end = max(end for box in boxes if (end := box["y"] + box["height"]) <= size["height"]) + margin
    target = FIGURES / f"page-{name}.png"
    page.screenshot(path=target, clip={"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], end)})
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")
    if target.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{target} is larger than {MOST_BYTES // 1000} kB")


if __name__ == "__main__":
    sys.exit(main())
