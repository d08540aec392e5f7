"""`promptdsi serve` and `mcp`: an index for browsers, programs and AI assistants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import Device, Engine, IndexPath, On, Output, Quiet, Threads, open_index
from promptdsi.errors import PromptDSIError


def serve(
    index: IndexPath,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; any but a loopback address needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    allow_write: Annotated[bool, typer.Option("--allow-write", help="Let holders of the write token add and delete.")] = False,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with lines `read TOKEN` and `write TOKEN`.", metavar="FILE")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="Another host name to accept, as behind a proxy.", metavar="NAME")
    ] = None,
    connections: Annotated[
        int, typer.Option("--connections", min=8, help="Most connections at once; an address that is not loopback may have a quarter.")
    ] = 512,
    proxy: Annotated[
        list[str] | None,
        typer.Option("--proxy", help="Address of a reverse proxy, whose X-Forwarded-For tells clients apart.", metavar="ADDRESS"),
    ] = None,
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    on: On = None,
    quiet: Quiet = False,
) -> None:
    """Serve an index as a web page and a JSON API. Ctrl-C or SIGTERM ends it after running requests have been answered."""
    # Waiting threads must not occupy a core that a search needs: set before anything loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from promptdsi.serving.access import LOOPBACK, Limits, access_for, proxies_of
    from promptdsi.serving.app import LOCAL_HOSTS, create_app, run
    from promptdsi.serving.middleware import host_name

    host = host.strip("[]")
    open_index(index, engine=engine, device=device)  # fails now, with one sentence, if there is no index or no such engine
    access = access_for(host, allow_write=allow_write, token_file=token_file)
    named = frozenset(host_name(name) for name in (host, *(allow_host or ())))
    hosts = LOCAL_HOSTS | named if LOOPBACK.fullmatch(host) else None
    limits = Limits(connections=connections, proxies=proxies_of(proxy or ()))
    app = create_app(index, access=access, hosts=hosts, limits=limits, engine=engine, device=device, threads=threads, on=on)

    def listening(url: str) -> None:
        generated = access.write if allow_write and token_file is None else None
        # A generated token is printed in any case: it is stored nowhere else.
        output = Output(quiet=quiet and not generated)
        output.say(f"{index} on {url}/" + (f"#token={generated}" if generated else "") + "   (Ctrl-C ends it)")

    run(app, host, port, listening)


def mcp(index: IndexPath, engine: Engine = "auto", device: Device = "auto", threads: Threads = None) -> None:
    """Serve an index to AI assistants (MCP). They get search and get over standard input and output; read only."""
    try:
        from promptdsi.serving.mcp import create_server
    except ImportError as error:
        raise PromptDSIError(f"promptdsi mcp needs {error.name}: pip install 'promptdsi[mcp]'") from None
    create_server(index, engine=engine, device=device, threads=threads).run()
