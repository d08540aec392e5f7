"""HTTP as uvicorn speaks it, with a bound on how long a client may take to send its headers."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_FOR_HEADERS = 10.0


class HeaderTimeoutProtocol(H11Protocol):
    """Closes connections whose headers do not arrive: a thousand slow clients are otherwise a thousand open files."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._stop_timer()  # from here uvicorn's own timer for idle connections runs
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a response that the client does not read would be kept for ever

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(SECONDS_FOR_HEADERS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
