"""Clients that mean harm, on this machine's loopback: they never read, send a byte at a time, pipeline. Bounded in number and time.

Tests run a few of them for a second, `tools/soak/soak_serving.py` two hundred for minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable

HEADERS = b"GET /api/index HTTP/1.1\r\nHost: localhost\r\nX-Filler: " + b"x" * 1000
BODY = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
PIPELINE = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
RECEIVE_BUFFER = 4096


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection that takes little from the server unless it is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connection.settimeout(30)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    return connection


async def never_read(connection: socket.socket, pause: float) -> None:
    """Pipeline requests and read no answer, until the server hangs up."""
    await asyncio.get_running_loop().sock_sendall(connection, PIPELINE)
    while True:
        await asyncio.sleep(pause)
        with contextlib.suppress(BlockingIOError):
            connection.send(b"\r\n")  # fails once the server has hung up


async def send_headers_slowly(connection: socket.socket, pause: float) -> None:
    await send_slowly(connection, HEADERS, pause)


async def send_body_slowly(connection: socket.socket, pause: float) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, BODY)
    await send_slowly(connection, b" " * 1000, pause)


async def send_slowly(connection: socket.socket, data: bytes, pause: float) -> None:
    """Send a byte after each pause, until the server hangs up."""
    for place in range(len(data)):
        connection.send(data[place : place + 1])
        await asyncio.sleep(pause)
        with contextlib.suppress(BlockingIOError):
            while received := connection.recv(1 << 16):
                del received
            return


Attack = Callable[[socket.socket, float], Awaitable[None]]


class Attackers(threading.Thread):
    """So many of each attack at once, for so many seconds at most; `closed` counts the connections that the server closed."""

    def __init__(self, port: int, seconds: float, *, pause: float, attacks: dict[Attack, int]) -> None:
        super().__init__()
        self.port, self.pause, self.attacks = port, pause, attacks
        self.until = time.monotonic() + seconds
        self.closed: Counter[str] = Counter()

    def run(self) -> None:
        asyncio.run(self._run_all())

    def stop(self) -> None:
        self.until = 0.0
        self.join()

    async def _run_all(self) -> None:
        await asyncio.gather(*(self._repeat(attack) for attack, number in self.attacks.items() for _ in range(number)))

    async def _repeat(self, attack: Attack) -> None:
        """Attack on one connection after another, each begun when the server has closed the one before."""
        while (left := self.until - time.monotonic()) > 0:
            with contextlib.closing(connect(self.port)) as connection, contextlib.suppress(TimeoutError):
                connection.setblocking(False)
                async with asyncio.timeout(left):
                    with contextlib.suppress(ConnectionError):
                        await attack(connection, self.pause)
                    self.closed[attack.__name__] += 1


def run(port: int, seconds: float, *, pause: float, attacks: dict[Attack, int]) -> Counter[str]:
    """Attack for so many seconds; how often the server closed a connection of each kind."""
    attackers = Attackers(port, seconds, pause=pause, attacks=attacks)
    attackers.run()
    return attackers.closed
