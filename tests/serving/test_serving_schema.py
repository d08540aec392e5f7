"""The OpenAPI description against the server: whatever it allows is answered, and every answer is one it describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
import served
import small
from hypothesis import settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from promptdsi.serving.app import create_app

schema = schemathesis.openapi.from_dict(create_app("nowhere").openapi())


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: object, value: object) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def server(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Served]:
    with served.serving(small.copied(original, tmp_path_factory.mktemp("described") / "index")) as running:
        yield running


@schema.parametrize()
@settings(max_examples=12)
def test_every_answer_is_described(case: schemathesis.Case, server: served.Served) -> None:
    # Rules no schema can say: documents hold no NUL and no id twice with other content; queries times hits have a bound; bytes are a file.
    left_out = [positive_data_acceptance] if case.path in ("/api/documents", "/api/search", "/api/read") else []
    case.call_and_validate(base_url=server.url, headers=served.HEADERS, excluded_checks=left_out)


def test_every_route_has_words_and_the_requests_have_examples() -> None:
    described = create_app("nowhere").openapi()
    for address, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], f"{method} {address}"
    fields = described["components"]["schemas"]["SearchBody"]["properties"]
    assert "examples" in str(fields["query"])
