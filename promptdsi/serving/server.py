"""Run an application with uvicorn: bounds on connections, an orderly end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn
from fastapi import FastAPI

from promptdsi.errors import PromptDSIError
from promptdsi.serving.http_protocol import HeaderTimeoutProtocol


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
