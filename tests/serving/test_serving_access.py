"""Who may ask the server what, and from where (R26)."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import served

from promptdsi import Index
from promptdsi.errors import DataError
from promptdsi.serving.access import Access, access_for, read_tokens
from promptdsi.serving.error_responses import APIError


@pytest.fixture(scope="module")
def locked(path: Path) -> Iterator[served.Served]:
    """A server that needs a token for reading too."""
    with served.serving(path, access=served.BOTH) as running:
        yield running


@pytest.mark.parametrize(
    ("token", "read", "write"), [(None, 401, 401), ("wrong-token-of-length", 401, 401), (served.READ, 200, 403), (served.WRITE, 200, 404)]
)
def test_read_and_write_tokens_are_separate(locked: served.Served, token: str | None, read: int, write: int) -> None:
    with httpx.Client(base_url=locked.url, timeout=60) as client:
        headers = served.bearer(token) if token else {}
        for address in ("/api/index", "/api/generations", "/api/facets", "/api/jobs", "/metrics", "/api/retention"):
            assert client.get(address, headers=headers).status_code == read, address
        assert client.post("/api/search", json={"query": "water"}, headers=headers).status_code == read
        assert client.delete("/api/documents/nobody", headers=headers).status_code == write
        assert client.post("/api/undelete", json={"docids": ["nobody"]}, headers=headers).status_code == write
        assert client.post("/api/rollback", json={"generation": 1000}, headers=headers).status_code == write
        for address in ("/", "/healthz", "/readyz"):  # they hold nothing of the index
            assert client.get(address, headers=headers).status_code == 200


def test_writing_is_off_unless_it_is_enabled(path: Path) -> None:
    before = Index.open(path, device="cpu").generation
    with served.serving(path, access=Access()) as running:
        assert running.search("water")["generation"] == before
        assert not running.client.get("/api/index").json()["writable"]
        for method, address in (("DELETE", "/api/documents/x"), ("POST", "/api/documents"), ("POST", "/api/undelete")):
            answer = running.client.request(method, address, json={"docids": ["x"]})
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "read_only"
    assert Index.open(path, device="cpu").generation == before


def test_other_addresses_need_a_token(run: object, path: Path, tmp_path: Path) -> None:
    refused = run("serve", path, "--host", "0.0.0.0")  # type: ignore[operator]
    assert refused.returncode == 2 and "token-file" in refused.stderr
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# for tests\nread {served.READ}\n")
    assert access_for("0.0.0.0", allow_write=False, token_file=tokens).read == served.READ
    no_write = run("serve", path, "--allow-write", "--token-file", tokens)  # type: ignore[operator]
    assert no_write.returncode == 2 and "write TOKEN" in no_write.stderr
    made_up = access_for("127.0.0.1", allow_write=True, token_file=None)
    assert made_up.read is None and made_up.write is not None and len(made_up.write) >= 32
    twice = f"read {served.READ}\nread {served.WRITE}"
    for wrong in (
        b"read short",
        f"both {served.READ}".encode(),
        f"read {served.READ}\nwrite {served.READ}".encode(),
        twice.encode(),
        b"read " + b"\xff" * 20,
    ):
        tokens.write_bytes(wrong)
        with pytest.raises(DataError):
            read_tokens(tokens)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by measuring, which a busy machine spoils: only `hmac.compare_digest` decides, and both tokens are always compared."""
    compared: list[bytes] = []

    def no(given: bytes, token: bytes) -> bool:
        compared.append(token)
        return False

    monkeypatch.setattr(hmac, "compare_digest", no)
    with pytest.raises(APIError):
        served.BOTH.check(f"Bearer {served.WRITE}", writing=False)
    assert compared == [served.WRITE.encode(), served.READ.encode()]
    monkeypatch.setattr(hmac, "compare_digest", lambda given, token: True)
    served.BOTH.check("bearer anything", writing=True)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_foreign_host_names_are_not_answered(server: served.Served, host: str) -> None:
    for address in ("/", "/api/index", "/healthz"):
        answer = server.client.get(address, headers={"Host": host})
        assert answer.status_code == 421 and answer.json()["error"]["code"] == "wrong_host"
    assert server.client.get("/healthz", headers={"Host": f"localhost:{server.port}"}).status_code == 200


def test_pages_of_other_sites_cannot_even_make_the_server_work(server: served.Served) -> None:
    answer = server.client.get("/api/facets", headers={"Sec-Fetch-Site": "cross-site"})  # as an <img> elsewhere would ask
    assert answer.status_code == 403
    assert server.client.get("/api/index", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert server.client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page is fine


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://localhost"])
def test_other_sites_are_not_answered_and_cors_is_off(server: served.Served, origin: str) -> None:
    answer = server.client.post("/api/search", json={"query": "water"}, headers={"Origin": origin})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_origin"
    preflight = server.client.options("/api/search", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
    assert preflight.status_code >= 400
    same_origin = server.client.post("/api/search", json={"query": "water"}, headers={"Origin": server.url})
    assert same_origin.status_code == 200
    for response in (answer, preflight, same_origin):
        assert not [name for name in response.headers if name.startswith("access-control")]
