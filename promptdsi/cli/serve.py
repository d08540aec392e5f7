"""`promptdsi serve` and `mcp`: an index for browsers, programs and assistants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import Device, Engine, Quiet, Threads, say
from promptdsi.cli.learn import IndexPath
from promptdsi.errors import PromptDSIError

SECONDS_TO_DRAIN = 5  # for requests; what runs beside them gets the rest of the ten seconds that are promised


def serve(
    index: IndexPath,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    allow_write: Annotated[bool, typer.Option("--allow-write", help="Let holders of the write token add and delete.")] = False,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with lines `read TOKEN` and `write TOKEN`.", metavar="FILE")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A further host name to answer to, as behind a proxy.", metavar="NAME")
    ] = None,
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Serve the page and the JSON API. Ctrl-C or SIGTERM ends it; what is being answered is answered first."""
    # A thread that waits must not burn a core that somebody else needs: set before anything loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from promptdsi.index.index import Index
    from promptdsi.serving.access import LOOPBACK, access_for
    from promptdsi.serving.app import LOCAL_HOSTS, create_app
    from promptdsi.serving.middleware import host_name
    from promptdsi.serving.server import run

    host = host.strip("[]")
    Index.open(index, check=False, engine=engine, device=device)  # one sentence now if there is no index, or the engine does not fit
    access = access_for(host, allow_write=allow_write, token_file=token_file)
    own = frozenset(host_name(name) for name in (host, *(allow_host or ())))
    hosts = LOCAL_HOSTS | own if LOOPBACK.fullmatch(host) else None
    app = create_app(index, access=access, hosts=hosts, engine=engine, device=device, threads=threads)

    def listening(url: str) -> None:
        made_up = access.write if allow_write and token_file is None else None
        # A token nobody is told is of no use: it is printed even if nothing else is.
        say(f"{index} on {url}/" + (f"#token={made_up}" if made_up else "") + "   (Ctrl-C ends it)", quiet=quiet and not made_up)

    run(app, host, port, drain_seconds=SECONDS_TO_DRAIN, on_listening=listening)


def mcp(index: IndexPath, engine: Engine = "auto", device: Device = "auto", threads: Threads = None) -> None:
    """Serve search and get over standard input and output, as an MCP server; read only."""
    try:
        from promptdsi.serving.mcp import create_server
    except ImportError as error:
        raise PromptDSIError(f"promptdsi mcp needs {error.name}: pip install 'promptdsi[mcp]'") from None
    create_server(index, engine=engine, device=device, threads=threads).run()
