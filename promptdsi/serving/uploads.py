"""Files that clients send to be read: one at a time in a confined process, a few waiting, so that a hostile file holds nothing else up."""

from __future__ import annotations

from promptdsi.corpus.confined import ConfinedReader
from promptdsi.corpus.file_documents import FileDocument, document_of
from promptdsi.serving.error_responses import APIError, overloaded
from promptdsi.serving.worker import Worker

MAX_WAITING_FILES = 4  # with the one that is read
SECONDS_FOR_FILE = 30.0


class UploadReader:
    """Reads the files of one server in a thread of their own: a file that takes long takes no thread from other requests."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of a file, unpacked
        self._worker = Worker("serve-read")
        self._waiting = 0

    async def read(self, name: str, contents: bytes) -> FileDocument:
        """The document of a file. If the client disconnects, reading ends with its process."""
        if self._waiting >= MAX_WAITING_FILES:
            raise overloaded("too many files are being read")
        self._waiting += 1
        try:
            with ConfinedReader(seconds=SECONDS_FOR_FILE) as reader:  # one child at a time: each may take as much memory as a server has
                return await self._worker.run(lambda: document_of(contents, name, reader, max_bytes=self.max_bytes))
        except ValueError as error:
            raise APIError(422, "file", f"the file {name[:80]} {error}", "nothing was added") from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        await self._worker.close()
