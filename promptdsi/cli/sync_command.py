"""`promptdsi sync`: bring an index in step with folders, once or for as long as it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.add_command import MaxDrift, TrainingSeed, duration, report_progress, works_alone
from promptdsi.cli.console import IndexPath, On, Output, Runtime, corrections_lost, merged_corpora, open_index, print_json, use_threads
from promptdsi.corpus.corpus import ReadNotes
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.wording import counted

if TYPE_CHECKING:
    from promptdsi.index.results import SyncReport

LISTED = 5  # docids of each kind of change
RETRY_MS = 2000
MARKS = {"added": "+", "updated": "~", "deleted": "-"}


def sync(
    index: IndexPath,
    folders: Annotated[list[Path], typer.Argument(help="Folders of files.", metavar="FOLDER…")],
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on: bring the index in step whenever a file changes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Searchable at once, without training; `tune` trains later.")] = False,
    on_error: Annotated[str, typer.Option("--on-error", metavar="stop|skip", help="What to do with a file that cannot be read.")] = "skip",
    follow_links: Annotated[bool, typer.Option("--follow-links", help="Follow links in the folders.")] = False,
    max_drift: MaxDrift = None,
    seed: TrainingSeed = None,
    on: On = None,
    runtime: Runtime,
    output: Output,
) -> None:
    """Keep an index in step with folders. New files are added, changed ones replaced, those that are gone deleted, in one generation.

    Run again, nothing happens. A file that cannot be read keeps its last version in the index.
    """
    if not works_alone():
        return
    if on_error not in ("stop", "skip"):
        raise UsageError(f"--on-error {on_error}: expected stop or skip")
    if watch and dry_run:
        raise UsageError("--watch and --dry-run exclude each other")
    use_threads(runtime.threads)
    opened = open_index(index, device=runtime.device, on=on)
    options: dict[str, Any] = {"dry_run": dry_run, "fast": fast, "max_drift": max_drift, "seed": seed}
    options["on_changes"] = lambda report: _announce(report, output)

    def bring_in_step() -> None:
        notes = ReadNotes(skip=on_error == "skip", follow_links=follow_links)
        opened.refresh()
        report = opened.sync(folders, notes=notes, **options, **report_progress(output))
        for sentence in notes.sentences():
            output.say(sentence)
        if output.json:
            return print_json(asdict(report))
        for sentence in _summary(report, index, dry_run=dry_run):
            output.say(sentence)

    bring_in_step()
    if watch:
        output.say(f"watching {', '.join(map(str, folders))}; Ctrl-C ends it")
        _watch([folder.resolve() for folder in folders], bring_in_step, output)


def _watch(roots: list[Path], bring_in_step: Callable[[], None], output: Output) -> None:
    """Bring the index in step after every change, until interrupted. What fails, because another process writes say, is tried again."""
    from watchfiles import watch

    behind, last_error = True, ""  # a file may have changed before watching began

    def is_visible(_: object, path: str) -> bool:
        return _is_visible(Path(path), roots)

    for changed in watch(*roots, watch_filter=is_visible, raise_interrupt=False, yield_on_timeout=True, rust_timeout=RETRY_MS):
        if not (changed or behind):
            continue
        try:
            bring_in_step()
            behind, last_error = False, ""
        except PromptDSIError as error:
            if str(error) != last_error:
                output.say(f"{error}; trying again every {RETRY_MS // 1000} s")
            behind, last_error = True, str(error)


def _is_visible(path: Path, roots: list[Path]) -> bool:
    """Whether a path inside one of the folders is not hidden, nor what we write there ourselves."""
    inside = [path.relative_to(root) for root in roots if path.is_relative_to(root)]
    return any(not any(part.startswith(".") for part in relative.parts) for relative in inside)


def _announce(report: SyncReport, output: Output) -> None:
    """What is about to change."""
    for kind, mark in MARKS.items():
        docids: list[str] = getattr(report, kind)
        for docid in docids[:LISTED]:
            output.say(f"{mark} {docid}")
        if len(docids) > LISTED:
            output.say(f"{mark} … and {len(docids) - LISTED:,} more")


def _summary(report: SyncReport, index: Path, *, dry_run: bool) -> list[str]:
    counts = [f"{len(getattr(report, kind)):,} {kind}" for kind in MARKS if getattr(report, kind)]
    if not counts:
        return [f"{index}: in step, {counted(report.unchanged, 'document')} unchanged"]
    what = f"{', '.join(counts)}, {report.unchanged:,} unchanged"
    lines = [f"{index}: would be {what}" if dry_run else f"{index}: generation {report.generation}: {what}, in {duration(report.seconds)}"]
    lines += corrections_lost(report.corrections_lost)
    if report.drift:
        before, after = 100 * report.drift.before, 100 * report.drift.after
        lines.append(f"earlier probe queries: Hits@10 {before:.1f} before, {after:.1f} now (n {report.drift.n:,})")
    return lines + merged_corpora(report)
