"""HTTP as uvicorn speaks it, with a bound on how long a client may take to say what it wants."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_FOR_HEADERS = 10.0


class PatientProtocol(H11Protocol):
    """Closes connections whose headers do not arrive: a thousand slow clients are otherwise a thousand open files."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._overdue is None:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._cancel()  # from here uvicorn's own timer for idle connections runs
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # an answer nobody reads would be kept for ever

    def _expect_headers(self) -> None:
        self._overdue = self.loop.call_later(SECONDS_FOR_HEADERS, self.transport.close)

    def _cancel(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
