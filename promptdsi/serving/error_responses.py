"""Errors as a client sees them: a status, a code, one sentence, perhaps a hint; never a path, a traceback or a token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from promptdsi.engine.ray_store import ShardsUnavailable
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.index.results import Busy

RETRY_AFTER = {"Retry-After": "1"}
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class APIError(Exception):
    """A response that is not a result."""

    def __init__(self, status: int, code: str, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint, self.headers = status, code, message, hint, dict(headers or {})


def overloaded(message: str) -> APIError:
    return APIError(429, "overloaded", message, "try again in a second", RETRY_AFTER)


def to_api_error(error: Exception, folder: Path, *, writing: bool = True) -> APIError:
    """The response to an exception of the index. An unexpected exception is reported without details; the log has them."""
    match error:
        case APIError():
            return error
        case Busy():
            return APIError(409, "busy", "another process is writing to this index", "try again when it has ended", RETRY_AFTER)
        case UsageError():
            return APIError(400, "usage", without_path(str(error), folder))
        case ShardsUnavailable():
            return APIError(503, "shards", str(error), "the search was not answered in part either", RETRY_AFTER)
        case PromptDSIError() | OSError() if not writing:
            return APIError(503, "storage", "the index cannot be read", "the server's log has more")
        case DataError():
            return APIError(409, "data", without_path(error.problem, folder))
        case PromptDSIError():
            return APIError(409, "refused", without_path(str(error), folder))
        case OSError():
            return APIError(507, "storage", f"the index could not be written: {error.strerror or 'an input or output error'}")
    return APIError(500, "internal", "something went wrong inside the server", "its log has more under this request id")


def without_path(message: str, folder: Path) -> str:
    """A message in which the index is named by its folder's name, not by its path.

    Examples
    --------
    >>> without_path("/srv/data/notes: this index is damaged; run `promptdsi verify /srv/data/notes`", Path("/srv/data/notes"))
    'this index is damaged; run `promptdsi verify notes`'
    """
    name = folder.absolute().name
    for path in sorted({str(folder), str(folder.absolute()), str(folder.resolve())} - {"."}, key=len, reverse=True):
        message = re.sub(rf"^{re.escape(path)}[^:\s]*: ", "", message).replace(path, name)
    return CONTROL.sub(" ", message)
