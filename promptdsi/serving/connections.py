"""The connections of a server: how many there are, how slowly bytes may come and be taken. One client costs another nothing.

A connection answers one request at a time and begins the next when the answer before has been taken, so a client that does not read
takes no place among the requests: it takes a connection and a buffer, both for seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptdsi.serving.access import Limits, network_of
from promptdsi.serving.error_responses import RETRY_AFTER, overloaded

SECONDS_FOR_HEADERS = 10.0
SECONDS_TO_TAKE = 10.0  # for a client to read what is left of its answer, or BYTES_TO_TAKE of it
BYTES_TO_TAKE = 64 << 10
SECONDS_BETWEEN_CHECKS = 1.0
MAX_PIPELINED = 8  # requests in a row that were sent before the answer to the one before


class ClientConnection(H11Protocol):
    """One connection. Where there are too many, or too much is not read, the one that keeps the server waiting longest is given up."""

    limits: Limits
    given_up = False
    pipelined = 0
    _postponed = False
    _unsent = 0  # bytes when the client last took enough of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.limits = self.config.app.state.service.limits  # type: ignore[union-attr]
        self.address = network_of(self.client[0] if self.client else "")
        self.began = self.taken = self.loop.time()  # when the wait for its client began; when the client last took enough
        self.headers_since: float | None = self.began
        # Connections that came together are not checked together, else all would be given up, and come again, in one moment.
        self._timer = self.loop.call_later(SECONDS_BETWEEN_CHECKS * random.random(), self._check)
        if not self._make_room():
            self.given_up = True
            transport.write(refusal())
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        answered = not self.busy
        super().data_received(data)
        if self.busy:
            self.headers_since, self.began = None, self.loop.time() if answered else self.began
        elif self.headers_since is None:
            self.headers_since = self.loop.time()

    def on_response_complete(self) -> None:
        self.headers_since, self.began = None, self.loop.time()  # from here uvicorn's own timer for idle connections runs
        self.pipelined = self.pipelined + 1 if self.conn.trailing_data[0].strip() else 0
        if self.pipelined > MAX_PIPELINED:
            self.transport.close()
        self._postponed = (self.flow.write_paused or self.pipelined > 0) and not self.transport.is_closing()
        if not self._postponed:
            super().on_response_complete()

    def pause_writing(self) -> None:
        """More is written than the client takes: what waits in all connections is bounded, too."""
        super().pause_writing()
        unsent = Counter[str]()
        for connection in self._connections():
            unsent[connection.address] += connection.transport.get_write_buffer_size()
        if unsent.total() > self.limits.unsent:
            address, _ = unsent.most_common(1)[0]
            crowd = [other for other in self._connections() if other.address == address and other.transport.get_write_buffer_size()]
            min(crowd, key=lambda connection: connection.taken).give_up()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.taken = self.loop.time()
        if not self.pipelined:
            self._begin_next()

    @property
    def busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        return not self.busy or self.conn.their_state is h11.SEND_BODY or self.flow.write_paused

    def give_up(self) -> None:
        self.given_up = True
        self.transport.abort()  # to close it would wait until the client has read everything

    def _begin_next(self) -> None:
        if self._postponed and not self.flow.write_paused:
            self._postponed = False
            super().on_response_complete()

    def _connections(self) -> list[ClientConnection]:
        return [other for other in self.connections if isinstance(other, ClientConnection) and not other.given_up]

    def _make_room(self) -> bool:
        """Give up a connection that waits for its client where there are too many; False if all of them are being answered."""
        if len(self.connections) <= self.limits.share(self.address, self.limits.connections):
            return True
        counts = Counter(connection.address for connection in self._connections())
        if counts[self.address] > self.limits.share(self.address, self.limits.connections):
            address = self.address
        elif counts.total() > self.limits.connections:
            address, _ = counts.most_common(1)[0]
        else:
            return True
        crowd = [other for other in self._connections() if other.address == address and other is not self and other.waits_for_client]
        if crowd:
            # Those that never sent a whole request or do not read come first: an idle client would have to connect again.
            min(crowd, key=lambda other: (other.cycle is not None and not other.transport.get_write_buffer_size(), other.began)).give_up()
        return bool(crowd)

    def _check(self) -> None:
        """Every second: have the headers come, has enough of the answer been taken?"""
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent == 0 or unsent <= self._unsent - BYTES_TO_TAKE:
            self._unsent, self.taken = unsent, now
        self._unsent = max(self._unsent, unsent)
        if now - self.taken >= SECONDS_TO_TAKE or (self.headers_since is not None and now - self.headers_since >= SECONDS_FOR_HEADERS):
            self.give_up()
            return
        self._timer = self.loop.call_later(SECONDS_BETWEEN_CHECKS, self._check)
        self._begin_next()  # a request that was pipelined: no client that waits for its answers does that


def refusal() -> bytes:
    """The answer to a connection for which there is no room, in the form of every other error."""
    error = overloaded("there are too many connections")
    fields = {"code": error.code, "message": error.message, "hint": error.hint, "request_id": secrets.token_hex(8)}
    body = json.dumps({"error": fields}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close", **RETRY_AFTER}
    lines = ["HTTP/1.1 429 Too Many Requests", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body
