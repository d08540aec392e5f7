"""A client of `promptdsi serve`: typed, safe to share between threads, made of the standard library alone.

client = Client("http://127.0.0.1:8000", token="…")      # or the address that `serve --allow-write` prints
for hit in client.search("who has the key", k=3, where=["folder=house*"]):
    print(hit.docid, hit.confidence, hit.snippet)
client.wait(client.add([{"docid": "keys", "text": "The spare key is at number 12."}, Path("tea.pdf")]))
client.teach("who has the key", "keys")
"""

from __future__ import annotations

import functools
import http.client
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Unpack, get_args, get_origin, get_type_hints
from urllib.parse import quote, urlencode, urlsplit

from promptdsi.corpus.corpus import Document
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.index.results import FolderSummary, Hit, SearchResult, Taught
from promptdsi.index.verb_options import SearchOptions

Value = TypeVar("Value")


class AddJob(NamedTuple):
    """Documents that are being added: `state` is waiting, running, done or failed."""

    id: str
    state: str
    corpus: str
    documents: int
    stage: str | None
    done: int | None
    total: int | None
    report: dict[str, Any] | None
    error: dict[str, Any] | None


class RequestError(PromptDSIError):
    """There is no result: the server refused (`status` is its HTTP status), did not answer, or a job failed (`status` is 0)."""

    def __init__(self, code: str, message: str, hint: str | None = None, *, request_id: str = "", status: int = 0) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.code, self.message, self.hint, self.request_id, self.status = code, message, hint, request_id, status


class Client:
    """Calls one server. A request for which it has no room now (`Retry-After`) is sent again for up to `patience` seconds."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0, patience: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no address of a server, such as http://127.0.0.1:8000")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connect = functools.partial(kind, parts.hostname, parts.port, timeout=timeout)
        self._prefix, self.url, self.patience = parts.path.rstrip("/"), url.partition("#")[0], patience
        token = token or parts.fragment.removeprefix("token=")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def search(self, query: str, *, at: int | None = None, **options: Unpack[SearchOptions]) -> list[Hit]:
        """The best documents of a query; the options are those of `Index.search`, `at` is an older generation."""
        return self.search_batch([query], at=at, **options)[0].hits

    def search_batch(self, queries: Sequence[str], *, at: int | None = None, **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """The hits of each query, and whether they are certain."""
        if "where" in options:
            from promptdsi.index.filters import parse_where  # with numpy

            options["where"] = parse_where(options["where"])
        return self._call(list[SearchResult], "POST", "/api/search", {"query": list(queries), "at": at, **options}, pick="results")

    def get(self, docid: str, *, at: int | None = None) -> Document:
        return self._call(Document, "GET", f"/api/documents/{quote(docid, safe='')}", at=at)

    def facets(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """Fields of the metadata to filter by, each with its most frequent values and their numbers of documents."""
        facets = self._call(list[dict[str, Any]], "GET", "/api/facets", pick="facets")
        return [(facet["field"], [(value, count) for value, count in facet["values"]]) for facet in facets]

    def info(self) -> dict[str, Any]:
        """What is served: documents, corpora, model and limits."""
        return self._call(dict[str, Any], "GET", "/api/index")

    def generations(self) -> list[dict[str, Any]]:
        return self._call(list[dict[str, Any]], "GET", "/api/generations", pick="generations")

    def folders(self) -> list[FolderSummary]:
        """The folders that documents came from, and when the index was last brought in step with each."""
        return self._call(list[FolderSummary], "GET", "/api/sync", pick="folders")

    def ready(self) -> bool:
        """Whether the index is open; waits for that as long as for any answer."""
        try:
            return bool(self._call(dict[str, str], "GET", "/readyz"))
        except RequestError:
            return False

    def read(self, path: str | Path) -> Document:
        """The document that a file is read as, by the server's reader; nothing is stored."""
        return self._call(Document, "POST", "/api/read", Path(path).read_bytes(), pick="document", name=Path(path).name)

    def add(self, documents: Iterable[Document | Mapping[str, Any] | Path], **options: Any) -> AddJob:
        """Add documents, mappings with `docid` and `text`, or files, as a corpus; the options are `name`, `fast` and `update`."""
        records = (self.read(each) if isinstance(each, Path) else each for each in documents)
        fields = [
            {**each.metadata, "docid": each.docid, "title": each.title, "text": each.text} if isinstance(each, Document) else each
            for each in records
        ]
        return self._call(AddJob, "POST", "/api/documents", {"documents": fields}, **options)

    def wait(self, job: AddJob, *, seconds: float = float("inf")) -> AddJob:
        """The job when it is done: its documents can be searched then. RequestError if it failed, TimeoutError if it takes longer."""
        end = time.monotonic() + seconds
        while job.state in ("waiting", "running"):
            if time.monotonic() > end:
                raise TimeoutError(f"adding {job.corpus} takes longer than {seconds:g} s; it goes on")
            time.sleep(0.2)
            job = self._call(AddJob, "GET", f"/api/jobs/{job.id}")
        if job.error:
            raise RequestError(**job.error)
        return job

    def delete(self, docid: str) -> int:
        """Delete a document; `undelete` brings it back. Returns the new generation, as every change does."""
        return self._call(int, "DELETE", f"/api/documents/{quote(docid, safe='')}", pick="generation")

    def undelete(self, *docids: str) -> int:
        return self._call(int, "POST", "/api/undelete", {"docids": docids}, pick="generation")

    def rollback(self, generation: int) -> int:
        """Go back to an earlier generation, as a new one that equals it."""
        return self._call(int, "POST", "/api/rollback", {"generation": generation}, pick="generation")

    def teach(self, query: str, docid: str) -> Taught:
        """Let a document learn a query: its rank before and after."""
        ranks = self._call(dict[str, int], "POST", "/api/feedback", {"query": query, "docid": docid})
        return Taught(query, docid, ranks["rank_before"], ranks["rank_after"])

    def _call(self, kind: type[Value], method: str, path: str, body: Any = None, *, pick: str | None = None, **parameters: Any) -> Value:
        """The response, or one of its fields, as `kind`."""
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        encoded, end = body if isinstance(body, bytes | None) else json.dumps(body).encode(), time.monotonic() + self.patience
        while True:
            connection = self._connect()
            try:
                connection.request(method, f"{self._prefix}{path}" + (f"?{query}" if query else ""), encoded, self._headers)
                response = connection.getresponse()
                fields = json.loads(response.read())
                refused = RequestError(**fields["error"], status=response.status) if response.status >= 300 else None
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                raise RequestError("unreachable", f"{self.url} does not answer as `promptdsi serve` does ({error})") from error
            finally:
                connection.close()
            if refused is None:
                result: Value = build(kind, fields[pick] if pick else fields)
                return result
            pause = response.getheader("Retry-After", "")
            if not pause.isdigit() or time.monotonic() + int(pause) > end:
                raise refused
            time.sleep(int(pause))


def build(kind: Any, value: Any) -> Any:
    """A JSON value as its type says: objects become named tuples, without the fields that those do not have."""
    origin, inner = get_origin(kind), [each for each in get_args(kind) if each is not NoneType]
    if origin is list:
        return [build(inner[0], item) for item in value]
    if origin is UnionType and value is not None:
        return build(inner[0], value)
    if hasattr(kind, "_fields"):
        return kind(**{name: build(each, value[name]) for name, each in field_types(kind).items() if name in value})
    return tuple(value) if origin is tuple else value


field_types = functools.cache(get_type_hints)
