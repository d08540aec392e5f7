"""The API page: every route of the description, examples that work as printed, nothing loaded from other hosts."""

from __future__ import annotations

import html
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import served

from promptdsi.serving.api_page import render


class Elements(HTMLParser):
    """The elements of a page; every one that is opened must be closed in order."""

    EMPTY = ("meta", "link")

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("href", "src")]
        assert not [name for name, _ in attributes if name == "style" or name.startswith("on")]
        if tag not in self.EMPTY:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


def test_the_page_names_every_route_and_loads_nothing_from_elsewhere(server: served.Served) -> None:
    answer = server.client.get("/docs", headers={"Authorization": ""})
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    elements = Elements()
    elements.feed(answer.text)
    assert elements.opened == [] and "script" not in elements.tags
    loaded = [address for address in elements.addresses if not address.startswith("#")]
    assert loaded and all(server.client.get("/" + address.removeprefix("./")).status_code == 200 for address in loaded)
    assert not [address for address in loaded if "//" in address]
    for path, methods in server.client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in answer.text
    anchors = set(re.findall(r'id="([^"]+)"', answer.text))
    assert {address[1:] for address in elements.addresses if address.startswith("#")} == anchors


def commands(page: str) -> list[list[str]]:
    return [shlex.split(html.unescape(line)) for line in re.findall(r"<pre>(curl .*?)</pre>", page)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_work_as_printed(writable: served.Served, tmp_path: Path) -> None:
    docid = writable.search("water", k=1)["results"][0]["hits"][0]["docid"]
    (tmp_path / "tea.txt").write_text("Green tea wants cool water.")
    printed = commands(writable.client.get("/docs").text)
    assert len(printed) >= 18
    for words in printed:
        # The examples name a document of the demo corpus, and a token: those of this server are put in their place.
        command = [word.replace("weather-jet-stream", docid).replace("tea.pdf", "tea.txt").replace("TOKEN", served.WRITE) for word in words]
        answer = subprocess.run([*command, "-w", "\n%{http_code}"], capture_output=True, text=True, check=True, cwd=tmp_path)
        status = answer.stdout.rpartition("\n")[2]
        assert status in ("200", "202") or (status == "404" and "/api/jobs/" in words[2]), (words, answer.stdout)


def test_text_of_the_description_is_escaped() -> None:
    description = {"paths": {"/a": {"get": {"description": "<script>alert(1)</script>", "responses": {"200": {"description": ""}}}}}}
    page = render(description, "http://localhost'><b>")
    assert "<script" not in page and "<b>" not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize("address", ["/docs/", "/redoc", "/docs/oauth2-redirect"])
def test_no_other_page_of_the_framework_is_there(server: served.Served, address: str) -> None:
    assert server.client.get(address).status_code == 404
