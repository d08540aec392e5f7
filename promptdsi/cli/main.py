"""The `promptdsi` command: the table of commands, and how errors become sentences and exit codes."""

from __future__ import annotations

import functools
import inspect
import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Annotated, Any

import typer

from promptdsi import __version__
from promptdsi.cli.add_command import add, create, tune, upgrade
from promptdsi.cli.backup_command import backup, restore
from promptdsi.cli.bench_command import plan, report, run
from promptdsi.cli.console import strip_control_chars
from promptdsi.cli.data_command import backbone, data, queries
from promptdsi.cli.delete_command import delete, purge, rollback, undelete
from promptdsi.cli.demo_command import demo
from promptdsi.cli.eval_command import evaluate
from promptdsi.cli.info_command import export, info, log, verify
from promptdsi.cli.prune_command import prune
from promptdsi.cli.search_command import get, search
from promptdsi.cli.serve_command import mcp, serve
from promptdsi.cli.sync_command import sync
from promptdsi.cli.tag_command import tag
from promptdsi.cli.teach_command import teach
from promptdsi.errors import PromptDSIError, UsageError

# The commands in the groups of the help, in its order.
EVERYDAY: dict[str, Callable[..., None]] = {
    "create": create,
    "search": search,
    "get": get,
    "add": add,
    "sync": sync,
    "teach": teach,
    "delete": delete,
    "undelete": undelete,
    "rollback": rollback,
    "serve": serve,
}
UPKEEP: dict[str, Callable[..., None]] = {
    "info": info,
    "log": log,
    "verify": verify,
    "tune": tune,
    "purge": purge,
    "tag": tag,
    "prune": prune,
    "backup": backup,
    "restore": restore,
    "export": export,
    "upgrade": upgrade,
    "mcp": mcp,
}
RESEARCH: dict[str, Callable[..., None]] = {
    "demo": demo,
    "data": data,
    "queries": queries,
    "backbone": backbone,
    "eval": evaluate,
}
LONGEST = 5000  # characters of an error: a path may have four thousand
PANELS = {"Every day": EVERYDAY, "Looking after an index": UPKEEP, "Data and research": RESEARCH}
COMMANDS = EVERYDAY | UPKEEP | RESEARCH
BENCH: dict[str, Callable[..., None]] = {"run": run, "report": report, "plan": plan}


class PanelGroup(typer.core.TyperGroup):
    """A command whose help lists its commands under the titles of `PANELS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        width = formatter.width - 6 - max(map(len, self.commands))
        for name, command in self.commands.items():
            panels.setdefault(getattr(command, "rich_help_panel", ""), []).append((name, command.get_short_help_str(width)))
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(cls=PanelGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: a parameter whose type is a record of options, such as `Output`, becomes an option per field."""
    parameters = inspect.signature(command, eval_str=True).parameters
    records: dict[str, Any] = {name: given.annotation for name, given in parameters.items() if is_dataclass(given.annotation)}
    fields = {name: inspect.signature(record, eval_str=True).parameters for name, record in records.items()}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{field: given.pop(field) for field in fields[name]})
        command(**given)

    options = [option for name, parameter in parameters.items() for option in fields.get(name, {name: parameter}).values()]
    signature = inspect.Signature([option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn exceptions of a command into one sentence and an exit code. Not left to typer, which handles some of them itself."""

    @functools.wraps(command)
    def run(*arguments: object, **keywords: object) -> None:
        try:
            command(*arguments, **keywords)
        except UsageError as error:
            raise typer.Exit(_fail(str(error), 2)) from None
        except PromptDSIError as error:
            raise typer.Exit(_fail(str(error), 1)) from None
        except BrokenPipeError:
            # The reader of our output has exited (`promptdsi … | head`): there is no one to report to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except MemoryError:
            raise typer.Exit(_fail("the memory of this machine is not enough", 1)) from None
        except OSError as error:
            raise typer.Exit(_fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)) from None
        except KeyboardInterrupt as stop:
            what = f"interrupted; {stop}" if stop.args else "interrupted; run the same command again to go on"
            raise typer.Exit(_fail(what, 130)) from None

    return run


bench = typer.Typer(no_args_is_help=True, help="The paper's tables and figures, resumable: run, report, plan.", rich_markup_mode=None)
for panel, commands in PANELS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(guarded(flattened(command)))
for name, command in BENCH.items():
    bench.command(name)(guarded(flattened(command)))
app.add_typer(bench, name="bench", rich_help_panel="Data and research")


def _version(requested: bool) -> None:
    if requested:
        print(f"promptdsi {__version__}")
        raise typer.Exit


@app.callback()
def promptdsi(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """A search index that lives in a model's weights and learns new documents without seeing the old ones again."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 a problem of the data, index or machine, 2 wrong usage."""
    signal.signal(signal.SIGTERM, _terminated)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without Unicode shows a question mark, and no traceback
        sys.stdout.reconfigure(errors="replace")
    app()


def _terminated(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    # One sentence on one line: paths and excerpts of data may contain anything.
    sentence = " ".join(message.split())
    shown = sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]} …"
    print("error: " + strip_control_chars(shown), file=sys.stderr, flush=True)
    return code
