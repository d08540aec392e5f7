"""Rehearse the paper's scale without a GPU: its numbers of documents, its commands, tiny random models; measure time and memory.

    python -m tools.rehearse_paper [--hours 3] [--folder .] [--pages N --lines N --relevant N]   # writes docs/results/rehearsal.{json,md}

Raw files in the official formats are made in FOLDER/rehearsal, then every command of docs/research.md runs there as a process of its own,
one for each system of experiments/main.toml in both settings of experiments/scales/rehearsal.toml, two at a time, each on half of the
cores. Finished stages are not run again, so an interrupted rehearsal continues. With --hours, what still runs at the end is interrupted and
listed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from tools import evidence
from tools.rehearsal_data import MS_WORDS, NQ_WORDS, Counts, write_bert, write_few, write_msmarco, write_nq, write_t5

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {"ms": "MS MARCO 300k", "nq": "NQ320k"}  # the larger first: its D0 is what most has to wait for
BENCH = "--scale rehearsal --results rehearsal/results --offline"
RUN = f"promptdsi bench run experiments/main.toml {BENCH}"
FEW = 200  # documents for which the random T5 writes queries: it would take hours for all
MAX_WORDS = 4_096  # to which the sources truncate a page
LANES = 2  # stages at a time
FIRST = ("stream, then BM25", "D0")  # what the other stages of a data set need
DONE, STOPPED, FAILED, MISSING = "done", "interrupted", "failed", "not run"
NOT_AS_IN_THE_PAPER = (
    "a random BERT of two layers and width 64; pages of 120 words (NQ) and 40 (MS MARCO); one train query and one pseudo-query (`spans`) "
    "per document; one document in 100, or of few more, has a test query; one epoch; two settings in IncDSI's search, two passes of "
    f"IncDSI*; one seed; doc2query-t5 writes for {FEW} documents only"
)


class Stage(NamedTuple):
    """A command, and what the report calls it."""

    name: str
    setting: str
    command: str


def stages(counts: Counts) -> list[Stage]:
    """Everything that is run, in order: cheap systems first, and of the others those of the smaller data set."""
    systems = [system["label"] for system in tomllib.loads((ROOT / "experiments/main.toml").read_text("utf-8"))["system"]]
    last = [label for label in ("Joint", "DPR", "IncDSI", "IncDSI*") if label in systems]
    systems = [label for label in systems if label not in last and label != "BM25"]
    sizes = f"--pages {counts.pages} --lines {counts.lines} --relevant {counts.relevant}"
    planned = [
        Stage("raw files and models", "", f"python -m tools.rehearse_paper --make {sizes}"),
        Stage(
            f"queries for {FEW} documents by doc2query-t5",
            "",
            "promptdsi queries rehearsal/few -g doc2query-t5 --model rehearsal/t5 --offline",
        ),
        Stage("plan", "", "promptdsi bench plan experiments/main.toml --scale rehearsal --results rehearsal/results"),
    ]
    if counts == Counts():
        planned += [_run_of("stream, then BM25", setting, "BM25") for setting in SETTINGS]
        for setting in SETTINGS:
            planned.append(Stage("D0", setting, f"promptdsi bench run experiments/datasets.toml {BENCH} --setting {setting}"))
            planned += [_run_of(label, setting, label) for label in systems]
        planned += [_run_of(label, setting, label) for setting in reversed(SETTINGS) for label in last]
    else:  # small ones spend their time on starting: one process for all systems
        planned += [Stage("stream, D0, all systems", setting, f"{RUN} --setting {setting}") for setting in SETTINGS]
    reported = " ".join(f"experiments/{name}.toml" for name in ("datasets", "main", "topics"))
    return [*planned, Stage("report", "", f"promptdsi bench report {reported} --scale rehearsal --results rehearsal/results")]


def next_ready(pending: Sequence[Stage], running: Sequence[Stage]) -> Stage | None:
    """The first stage that waits for nothing: a data set's systems wait for its stream and its D0, and D0 for the stream."""
    for number, stage in enumerate(pending):
        if not any(other.name in FIRST and other.setting == stage.setting for other in (*running, *pending[:number])):
            return stage
    return None


def _run_of(name: str, setting: str, label: str) -> Stage:
    return Stage(name, setting, f"{RUN} --setting {setting} --only {shlex.quote(label)}")


class Rehearsal:
    """Runs stages as processes in the folder, and keeps what was measured in `rehearsal/measured.json` there."""

    def __init__(self, folder: Path, hours: float) -> None:
        self.folder, self.until = folder, time.monotonic() + 3600 * hours
        self.state = folder / "rehearsal" / "measured.json"
        self.state.parent.mkdir(parents=True, exist_ok=True)
        state: dict[str, Any] = json.loads(self.state.read_text("utf-8")) if self.state.is_file() else {}
        self.measured: dict[str, dict[str, Any]] = state.get("stages", {})
        self.started: float = time.monotonic() - state.get("seconds", 0.0)  # of the clock, over all continuations

    def run(self, planned: Sequence[Stage]) -> None:
        """Run what comes first, then the data sets, two stages at a time, each on its share of the cores, and then the rest."""
        of_data = [stage for stage in planned if stage.setting]
        end = planned.index(of_data[-1]) + 1
        every = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.run_together([stage for stage in planned[:end] if not stage.setting], [every])
        self.run_together(of_data, [every[lane::LANES] or every for lane in range(LANES)])
        self.run_together(planned[end:], [every])

    def run_together(self, planned: Sequence[Stage], lanes: Sequence[Sequence[int]]) -> None:
        """Run the stages, in each lane one after the other on its cores."""
        pending = [stage for stage in planned if self.measured.get(stage.command, {}).get("state") != DONE]
        running: list[Stage] = []
        changed = threading.Condition()

        def next_stage() -> Stage | None:
            with changed:
                while (stage := next_ready(pending, running)) is None and pending and time.monotonic() < self.until:
                    changed.wait(1.0)
                if stage is None or time.monotonic() > self.until:
                    return None
                pending.remove(stage)
                running.append(stage)
                return stage

        def work(cores: Sequence[int]) -> None:
            if cores:
                os.sched_setaffinity(0, cores)  # of this thread, and so of the processes that it starts
            while (stage := next_stage()) is not None:
                print(stage.command, flush=True)
                measured: dict[str, Any] = {"state": FAILED}
                try:
                    measured = self.run_stage(stage)
                finally:
                    print(f"  {stage.name} ({stage.setting or 'both'}): {measured}", flush=True)
                    with changed:
                        running.remove(stage)
                        self.measured[stage.command] = measured
                        if measured["state"] != DONE and stage.name in FIRST:  # what needs it would only fail too
                            pending[:] = [other for other in pending if other.setting != stage.setting]
                        changed.notify_all()
                        self.write()

        with ThreadPoolExecutor(len(lanes)) as pool:
            working = [pool.submit(work, cores) for cores in lanes]
            try:
                wait(working)
            except KeyboardInterrupt:  # the commands are interrupted as at the end of the hours, and what was measured is written
                self.until = 0.0
        for each in working:
            each.result()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def write(self) -> None:
        self.state.write_text(json.dumps({"seconds": self.seconds, "stages": self.measured}, indent=2) + "\n", "utf-8")

    def run_stage(self, stage: Stage) -> dict[str, Any]:
        """Run a command; its wall time, processor time and peak memory. Interrupted when the hours have passed."""
        arguments = [str(ROOT / part) if part.startswith("experiments/") else part for part in shlex.split(stage.command)]
        arguments = [sys.executable, *(["-m", "promptdsi", *arguments[1:]] if arguments[0] == "promptdsi" else arguments[1:])]
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        started = time.monotonic()
        words = re.findall(r"[a-z0-9+]+", f"{stage.setting} {stage.name}".lower().replace("*", " star"))
        with (self.folder / "rehearsal" / f"log-{'-'.join(words)}.txt").open("a") as log:
            log.write(f"\n$ {stage.command}\n")
            log.flush()
            process = subprocess.Popen(
                arguments, cwd=self.folder, env=os.environ | {"PYTHONPATH": paths}, stdout=log, stderr=log, start_new_session=True
            )
            interrupted = False
            while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
                if not interrupted and time.monotonic() > self.until:
                    os.kill(process.pid, signal.SIGTERM)  # not by `process`, which would wait for it itself
                    interrupted = True
                time.sleep(0.1)
        status, usage = ended[1:]
        process.returncode = os.waitstatus_to_exitcode(status)
        # ru_maxrss starts with what this small process holds, some 50 MiB.
        seconds = {"wall s": round(time.monotonic() - started, 1), "processor s": round(usage.ru_utime + usage.ru_stime, 1)}
        return seconds | {
            "peak GiB": round(usage.ru_maxrss / 2**20, 2),
            "state": DONE if not process.returncode else STOPPED if interrupted else FAILED,
        }


def recorded(folder: Path) -> dict[str, dict[str, str]]:
    """Of every recorded run, by source: seconds, and Hits@10 after the last corpus on D0 and over the new corpora."""
    runs: dict[str, dict[str, str]] = {}
    for path in sorted((folder / "rehearsal/results/runs").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        of_source = runs.setdefault(record["run"]["stream"]["source"], {})
        if path.name.startswith("d0-"):
            of_source["D0"] = f"{record['seconds']:,.1f} s"
            continue
        seconds = record["fit_seconds"] + record["search_seconds"] + sum(step["seconds"] for step in record["steps"])
        steps = record["ranks"]["test"]
        d0, *new = [[rank <= 10 for rank in ranks] for ranks in steps[max(steps, key=int)]]
        hits = [100 * sum(corpus) / max(1, len(corpus)) for corpus in (d0, [hit for corpus in new for hit in corpus])]
        name = path.stem.rpartition("-")[0].removesuffix(f"-{record['run']['seed']}")
        words = " with train queries" if record["run"]["params"].get("train_queries") else ""
        of_source[name + words] = f"{seconds:,.1f} s; H@10 on D0 {hits[0]:.1f}, on new corpora {hits[1]:.1f}"
    return runs


def estimate(measured: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Hours of `bench plan --gpu` at the scale `paper`, and bounds for what the processor does, from the words of a page."""
    from promptdsi.bench.plan import read_experiment
    from promptdsi.bench.runs import RunStore
    from promptdsi.bench.time_estimate import A100, plan_rows

    rows = plan_rows([read_experiment(ROOT / "experiments/main.toml", "paper")], RunStore(ROOT / "rehearsal" / "nothing"), A100)
    lines = {f"{A100.name}, main.toml in four settings with three seeds": f"{sum(row.seconds for row in rows) / 3600:.0f} h"}
    for name, ends in (("pseudo-queries", "pseudo-queries"), ("D0", ": D0"), ("DPR", "DPR"), ("IncDSI and IncDSI*", ("IncDSI", "IncDSI*"))):
        lines[f"of these {name}"] = f"{sum(row.seconds for row in rows if row.what.endswith(ends)) / 3600:.0f} h"
    for setting, words in (("nq", NQ_WORDS), ("ms", MS_WORDS)):
        stage = measured.get(_run_of("", setting, "BM25").command, {})
        if stage.get("state") == DONE:
            hours = stage["processor s"] * MAX_WORDS / words / 3600
            lines[f"{SETTINGS[setting]}, stream and BM25 on one core"] = (
                f"at most {hours:.1f} h, if every page had {MAX_WORDS:,} words ({words} here)"
            )
    return lines


def rehearse(folder: Path, counts: Counts, hours: float) -> None:
    rehearsal = Rehearsal(folder, hours)
    rehearsal.run(stages(counts))
    write_report(folder, counts, rehearsal.measured, rehearsal.seconds)
    if any(stage["state"] == FAILED for stage in rehearsal.measured.values()):
        raise SystemExit(f"a command failed; see {folder / 'rehearsal'}/log-*.txt")


def write_report(folder: Path, counts: Counts, measured: dict[str, dict[str, Any]], seconds: float) -> None:
    nothing = {"wall s": "–", "processor s": "–", "peak GiB": "–", "state": MISSING}
    rows = [
        {"stage": stage.name, "data": SETTINGS.get(stage.setting, "–"), **measured.get(stage.command, nothing)} for stage in stages(counts)
    ]
    finished = [row for row in rows if row["state"] == DONE]
    peaks = sorted(row["peak GiB"] for row in rows if row["peak GiB"] != "–")
    full_size = counts == Counts()
    sizes = " ".join(f"--{name} {size}" for name, size in counts._asdict().items())
    evidence.write(
        "rehearsal" if full_size else "rehearsal-small",
        "The paper's scale, rehearsed without a GPU" + ("" if full_size else ": fewer documents"),
        "make rehearse-paper" if full_size else f"python -m tools.rehearse_paper {sizes}",
        rows,
        documents=f"{counts.pages:,} pages of NQ; {counts.relevant:,} of {counts.lines:,} lines of MS MARCO",
        stages=f"{len(finished)} of {len(rows)} done",
        hours=round(seconds / 3600, 2),
        how="two stages at a time, each on half of the cores",
        peak=f"{sum(peaks[-LANES:]):.2f} GiB at most, of the two largest stages together",
        **{"not as in the paper": NOT_AS_IN_THE_PAPER},
        **{"estimate for the paper's scale, not measured": estimate(measured), "runs (seconds by the wall clock)": recorded(folder)},
        commands={f"{number}": f"`{stage.command}`" for number, stage in enumerate(stages(counts), 1)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=3.0, help="interrupt after this many hours")
    parser.add_argument("--folder", type=Path, default=Path(), help="where rehearsal/ is made")
    parser.add_argument("--make", action="store_true", help="make raw files and models in rehearsal/ of this folder, and no more")
    for name, size in Counts()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()
    counts = Counts(options.pages, options.lines, options.relevant)
    if not options.make:
        rehearse(options.folder, counts, options.hours)
        return
    folder = options.folder / "rehearsal"
    write_nq(folder / "nq", counts)
    write_msmarco(folder / "msmarco", counts)
    write_bert(folder / "bert")
    write_t5(folder / "t5")
    if not (folder / "few").exists():
        write_few(folder / "few", FEW)


if __name__ == "__main__":
    main()
