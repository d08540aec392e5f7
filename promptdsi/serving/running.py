"""Run an application with uvicorn: bounds on connections, an orderly end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn
from fastapi import FastAPI

from promptdsi.errors import PromptDSIError
from promptdsi.serving.protocol import PatientProtocol


def configured(app: FastAPI, *, seconds: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=seconds,
    )


def run(app: FastAPI, host: str, port: int, *, seconds: int, listening: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM, then answer what was asked already, for so many seconds at most."""
    with closing(bound(host, port)) as own, suppress(KeyboardInterrupt):  # uvicorn raises the signal again once all is done
        listening(f"http://{f'[{host}]' if ':' in host else host}:{own.getsockname()[1]}")
        uvicorn.Server(configured(app, seconds=seconds)).run(sockets=[own])


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens, or one sentence that says why not."""
    # With its protocol said aloud: only then does asyncio send small answers at once, instead of 40 ms later.
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(256)
    except OSError as error:
        made.close()
        raise PromptDSIError(f"cannot listen on {host} port {port}: {error.strerror}; give another with --host or --port") from None
    return made
