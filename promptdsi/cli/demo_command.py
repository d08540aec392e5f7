"""`promptdsi demo`: every step on the embedded corpus, in two to three minutes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import Json, Quiet, Threads, print_json, progress_for, table_of, use_threads
from promptdsi.cli.search_command import show_hits
from promptdsi.corpus import Corpus
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from promptdsi.index.index import Index

# Two epochs on two pseudo-queries per document instead of three on five: as good on so small a corpus, and faster.
QUICK: dict[str, Any] = {"fit.epochs": 2, "pseudo_queries": 2}
QUERIES = ("how do bats find their way in the dark", "why does the jet stream bend")  # answered in d0 and in d1
MARK = "made by `promptdsi demo`; it may be deleted\n"


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the demo's stream and index.")] = Path("promptdsi-demo"),
    threads: Threads = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Create an index of the embedded corpus, add four corpora, search, delete a document, roll back, verify."""
    started = time.monotonic()
    _make_folder(output)
    corpora = build_stream("demo", Request()).corpora
    build_stream("demo", Request()).write(output / "stream")
    use_threads(threads)
    steps = Demo(output / "index", corpora, quiet=quiet or json)
    steps.create()
    steps.add_all()
    for k in (10, 1) if not sys.stdout.isatty() else (1,):
        steps.show(k)
    steps.search()
    steps.delete()
    steps.verify()
    seconds = time.monotonic() - started
    if json:
        print_json({"hits@1": steps.hits(1), "hits@10": steps.hits(10), "seconds": round(seconds, 1), "index": str(output / "index")})
        return
    steps.say(f"\nDone in {seconds:.0f} s. Next:")
    program = "promptdsi" if shutil.which("promptdsi") else sys.argv[0]  # as the person can call it
    for line in (
        f'search {output}/index "how hot should water for tea be" --explain',
        f"serve {output}/index --allow-write     # a page: search, why, timeline, map, add, delete and undo",
        f"eval {output}/index {output}/stream/d3",
        "create my-index my-documents/     # a folder of text files, a .jsonl or a BEIR folder",
    ):
        steps.say(f"   {program} {line}")


def _make_folder(output: Path) -> None:
    """An empty folder; what an earlier demo left there, and only that, is removed."""
    mark = output / ".demo"
    if mark.is_file() and mark.read_text("utf-8") == MARK:
        for name in ("stream", "index"):
            shutil.rmtree(output / name, ignore_errors=True)
    elif output.exists() and any(output.iterdir()):
        raise DataError("exists and was not made by the demo; give another folder with -o", path=output)
    output.mkdir(parents=True, exist_ok=True)
    mark.write_text(MARK, "utf-8")


class Demo:
    """The steps of the demo. `ranks` maps a column (after which corpus, or which method) to each corpus's ranks."""

    def __init__(self, path: Path, corpora: list[Corpus], *, quiet: bool) -> None:
        self.path, self.corpora, self.quiet = path, corpora, quiet
        self.ranks: dict[str, dict[str, list[int]]] = {}
        self.index: Index

    def say(self, sentence: str) -> None:
        """Print to standard output: the sentences are the result of this command."""
        if not self.quiet:
            print(sentence, flush=True)

    def create(self) -> None:
        from promptdsi.index.index import Index

        d0 = self.corpora[0]
        self.say(f"1. Train {d0.name}: {len(d0)} documents on 15 subjects. The encoder and one row per document are trained.")
        started = time.monotonic()
        self.index = Index.create(self.path, d0, params=QUICK, offline=True, progress=progress_for(self.quiet))
        self.measure()
        self.say(f"   trained in {time.monotonic() - started:.0f} s")

    def add_all(self) -> None:
        """Add the later corpora; on a terminal the table is updated in place."""
        self.say("\n2. Add four corpora, one after the other. The encoder and all old rows stay frozen; new rows are trained.")
        if self.quiet or not sys.stdout.isatty():
            for corpus in self.corpora[1:]:
                self.say(self.add(corpus))
            self.compare()
        else:
            from rich.live import Live

            with Live(self.table(10), refresh_per_second=4) as live:
                for corpus in self.corpora[1:]:
                    live.console.print(self.add(corpus), highlight=False)
                    live.update(self.table(10), refresh=True)
                self.compare()
                live.update(self.table(10), refresh=True)

    def add(self, corpus: Corpus) -> str:
        """Add a corpus and report which old files were opened or changed."""
        from promptdsi.files import sha256_of

        blobs = self.path / "blobs"
        before = {path.name: sha256_of(path) for path in blobs.iterdir()}
        unread = self.unread_blobs()
        started = time.monotonic()
        with Watch() as watch:
            self.index.add(corpus)
        seconds = time.monotonic() - started
        same = sum(sha256_of(blobs / name) == digest for name, digest in before.items())
        proof = f"old document files opened: {len(watch.opened & unread)}, old blobs unchanged: {same} of {len(before)}"
        new = "; a subject that d0 does not cover" if corpus.name == "d3" else ""
        self.measure()
        return f"   {corpus.name}: {len(corpus)} documents in {seconds:.1f} s; {proof}{new}"

    def unread_blobs(self) -> set[str]:
        """Blobs that training must not open: documents, probes and queries of earlier corpora."""
        entries = self.index.manifest.corpora
        return {name for entry in entries for name in (entry.documents, entry.probes, entry.queries) if name}

    def measure(self) -> None:
        """Evaluate every corpus so far on its test queries, and record the ranks in the index."""
        seen = self.corpora[: len(self.index.manifest.corpora)]
        self.ranks[f"after {seen[-1].name}"] = {
            corpus.name: [min(query.ranks) for query in self.index.evaluate(corpus, record=True).query_ranks] for corpus in seen
        }

    def compare(self) -> None:
        """The same queries with the untrained backbone, and with BM25."""
        from promptdsi.methods.bm25 import BM25
        from promptdsi.methods.dense import Dense

        for method, title in ((Dense(backbone=self.index.info().backbone, offline=True), "dense"), (BM25(), "BM25")):
            method.fit(self.corpora[0])
            for corpus in self.corpora[1:]:
                method.add(corpus)
            self.ranks[title] = {}
            for corpus in self.corpora:
                pairs = corpus.pairs("test")
                ranks = method.ranks([pair.query.text for pair in pairs], [pair.docid for pair in pairs])
                self.ranks[title][corpus.name] = ranks.tolist()

    def hits(self, k: int) -> dict[str, dict[str, float]]:
        """Hits@k of each corpus, by column."""
        return {
            column: {name: sum(rank <= k for rank in ranks) / len(ranks) for name, ranks in figures.items()}
            for column, figures in self.ranks.items()
        }

    def table(self, k: int) -> Table:
        rows: list[dict[str, Any]] = []
        for corpus in self.corpora:
            figures = {column: _percent(values.get(corpus.name)) for column, values in self.hits(k).items()}
            rows.append({f"Hits@{k}, test": corpus.name, **figures})
        return table_of("", rows)

    def show(self, k: int) -> None:
        from rich.console import Console

        if not self.quiet:
            (Console() if sys.stdout.isatty() else Console(width=120)).print(self.table(k))

    def search(self) -> None:
        last = self.corpora[-1].pairs("test")[0].query.text
        self.say("3. Search. The document for the last query arrived with the last corpus.")
        for query in (QUERIES[0], QUERIES[1], last):
            self.say(f"\n   {query}?")
            if not self.quiet:
                show_hits(query, self.index.search(query, k=2), alone=True)

    def delete(self) -> None:
        query = QUERIES[1]
        docid = self.index.search(query, k=1)[0].docid
        self.say(f"\n4. Delete {docid} and search again: {query}?")
        self.index.delete(docid)
        hits = self.index.search(query, k=len(self.index))
        if docid in [hit.docid for hit in hits]:
            raise DataError(f"{docid} was deleted and is still retrieved", path=self.path)
        self.say(f"   not retrieved; {hits[0].docid} is first now")
        self.index.rollback()
        first = self.index.search(query, k=1)[0]
        self.say(f"   rolled back: {first.docid} is first again, in generation {self.index.generation}")

    def verify(self) -> None:
        result = self.index.verify()
        if result.problems:
            raise DataError(result.problems[0], path=self.path)
        sizes = f"{result.generations} generations, {result.blobs} blobs, {result.bytes / 1e6:.0f} MB"
        self.say(f"\n5. Verify: {sizes}; every checksum is correct, every row has its document.")


class Watch:
    """Records which files this process opens, by the interpreter's audit events."""

    hooked: Callable[[str, tuple[Any, ...]], None] | None = None
    watching: Watch | None = None

    def __init__(self) -> None:
        self.opened: set[str] = set()

    def __enter__(self) -> Watch:
        if Watch.hooked is None:  # a hook stays for the life of the process, so there is one
            Watch.hooked = Watch._note
            sys.addaudithook(Watch._note)
        Watch.watching = self
        return self

    def __exit__(self, *exception: object) -> None:
        Watch.watching = None

    @staticmethod
    def _note(event: str, arguments: tuple[Any, ...]) -> None:
        if Watch.watching is not None and event in ("open", "sqlite3.connect"):
            Watch.watching.opened.add(Path(str(arguments[0]).split("?")[0]).name)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
