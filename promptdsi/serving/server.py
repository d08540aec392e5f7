"""Run an application with uvicorn: bounds on slow connections, an orderly end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptdsi.errors import PromptDSIError

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


def uvicorn_config(app: FastAPI, *, drain_seconds: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HeaderTimeoutProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=drain_seconds,
    )


def run(app: FastAPI, host: str, port: int, *, drain_seconds: int, on_listening: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM, then finish the requests under way, for so many seconds at most."""
    with closing(listen(host, port)) as listener, suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        on_listening(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}")
        uvicorn.Server(uvicorn_config(app, drain_seconds=drain_seconds)).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an error of one sentence."""
    # With an explicit protocol: only then does asyncio send small responses at once, instead of 40 ms later.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise PromptDSIError(f"cannot listen on {host} port {port}: {error.strerror}; give another with --host or --port") from None
    return listener
