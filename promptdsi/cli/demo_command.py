"""`promptdsi demo`: every step on the embedded corpus, in two to three minutes."""

from __future__ import annotations

import functools
import shutil
import sys
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import Output, Threads, print_json, print_table, use_threads
from promptdsi.cli.search_command import show_hits
from promptdsi.corpus import Corpus, Document
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.errors import DataError

if TYPE_CHECKING:
    from promptdsi.index.index import Index

BENDS = "why does the jet stream bend"
QUERIES = (
    ("a paraphrase", "how do animals hunt by sound when they cannot see"),
    ("answered by a document of d1", BENDS),
    ("a part number, in one passage of the handbook", "4.A7/C2"),
    ("a question that another passage of it answers", "the shower stays cold, how do I get hot water"),
    ("a question that nothing answers", "which form do I need to renew a passport"),
)
MARK = "made by `promptdsi demo`; it may be deleted\n"


def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder for the demo's stream and index.")] = Path("promptdsi-demo"),
    *,
    threads: Threads = None,
    output: Output,
) -> None:
    """Show everything on an embedded corpus. It is created, grows by four corpora and a long document, and is searched and verified."""
    started = time.monotonic()
    _make_folder(folder)
    stream = build_stream("demo", Request())
    stream.write(folder / "stream")
    use_threads(threads)
    steps = Demo(folder / "index", stream.corpora, Output(quiet=output.quiet or output.json))
    steps.create()
    steps.add_all()
    steps.add_handbook()
    steps.search()
    steps.delete()
    steps.verify()
    seconds = time.monotonic() - started
    if output.json:
        print_json({"hits@1": steps.hits(1), "hits@10": steps.hits(10), "seconds": round(seconds, 1), "index": str(folder / "index")})
        return
    steps.say(f"\nDone in {seconds:.0f} s. Next:")
    program = "promptdsi" if shutil.which("promptdsi") else sys.argv[0]  # as the person can call it
    for line in (
        f'search {folder}/index "how do bees tell each other where flowers are" --explain',
        f"serve {folder}/index --allow-write     # a page: search, why, versions, add, delete and undo",
        f"eval {folder}/index {folder}/stream/d3",
        "create my-index my-documents/     # a folder of files (text, PDF, Word, …), a .jsonl or a BEIR folder",
    ):
        steps.say(f"   {program} {line}")


def _make_folder(folder: Path) -> None:
    """An empty folder; what an earlier demo left there, and only that, is removed."""
    mark = folder / ".demo"
    if mark.is_file() and mark.read_text("utf-8") == MARK:
        for name in ("stream", "index"):
            shutil.rmtree(folder / name, ignore_errors=True)
    elif folder.exists() and any(folder.iterdir()):
        raise DataError("exists and was not made by the demo; give another folder with -o", path=folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(MARK, "utf-8")


@functools.cache  # a hook stays for the life of the process, so there is one
def opened_files() -> set[str]:
    """The names of the files this process opens from now on, by the interpreter's audit events."""
    names: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "sqlite3.connect"):
            names.add(Path(str(arguments[0]).split("?")[0]).name)

    sys.addaudithook(note)
    return names


class Demo:
    """The steps of the demo. `ranks` maps a column (after which corpus, or which method) to each corpus's ranks."""

    def __init__(self, path: Path, corpora: list[Corpus], output: Output) -> None:
        self.path, self.corpora, self.output = path, corpora, output
        self.ranks: dict[str, dict[str, list[int]]] = {}
        self.index: Index

    def say(self, sentence: str) -> None:
        """Print to standard output: the sentences are the result of this command."""
        if not self.output.quiet:
            print(sentence, flush=True)

    def create(self) -> None:
        from promptdsi.index.index import Index

        d0 = self.corpora[0]
        self.say(f"1. Train {d0.name}: {len(d0)} documents on 15 subjects. Each gets a row, which is learned, and its words.")
        started = time.monotonic()
        self.index = Index.create(self.path, d0, offline=True, progress=self.output.progress)
        self.measure()
        self.say(f"   trained in {time.monotonic() - started:.0f} s")

    def add_all(self) -> None:
        self.say("\n2. Add four corpora, one after the other. The encoder and all old rows stay frozen; new rows are trained.")
        for corpus in self.corpora[1:]:
            self.add(corpus)
        self.compare()
        for k in (10, 1):
            self.show_hits_at(k)

    def add(self, corpus: Corpus) -> None:
        """Add a corpus and report which old files were opened or changed."""
        from promptdsi.files import sha256_of

        blobs = self.path / "blobs"
        before = {path.name: sha256_of(path) for path in blobs.iterdir()}
        # What training must not open: documents, probes and queries of earlier corpora.
        corpora = self.index.manifest.corpora
        unread = {name for entry in corpora for part in ("documents", "probes", "queries") for name in entry.files(part)}
        started = time.monotonic()
        opened_files().clear()
        self.index.add(corpus)
        seconds, opened = time.monotonic() - started, len(opened_files() & unread)
        same = sum(sha256_of(blobs / name) == digest for name, digest in before.items())
        proof = f"old document files opened: {opened}, old blobs unchanged: {same} of {len(before)}"
        new = "; a subject that d0 does not cover" if corpus.name == "d3" else ""
        self.measure()
        self.say(f"   {corpus.name}: {len(corpus)} documents in {seconds:.1f} s; {proof}{new}")

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

    def show_hits_at(self, k: int) -> None:
        if not self.output.quiet:
            columns = self.hits(k)
            rows = [
                {column: f"{100 * hits[corpus.name]:.1f}" if corpus.name in hits else "" for column, hits in columns.items()}
                for corpus in self.corpora
            ]
            print_table("", [{f"Hits@{k}, test": corpus.name, **row} for corpus, row in zip(self.corpora, rows, strict=True)])

    def add_handbook(self) -> None:
        """Add a document of several pages."""
        text = (resources.files("promptdsi.cli") / "handbook.md").read_text("utf-8")
        self.index.add(Corpus([Document("house-handbook", text, "House handbook")], [], {}, name="handbook"))
        passages = self.index.manifest.corpora[-1].row_count
        self.say(f"3. Add a long document: a handbook of {len(text.split())} words in {passages} passages, each with a row and its words.")

    def search(self) -> None:
        from promptdsi.index.results import SearchRequest

        self.say("\n4. Search.")
        for kind, query in QUERIES:
            self.say(f"\n   {query}     ({kind})")
            if not self.output.quiet:
                show_hits(query, self.index.search_batch([SearchRequest(query, k=2)])[0], alone=True)

    def delete(self) -> None:
        docid = self.index.search(BENDS, k=1)[0].docid
        self.say(f"\n5. Delete {docid} and search again: {BENDS}")
        self.index.delete(docid)
        hits = self.index.search(BENDS, k=len(self.index))
        if docid in [hit.docid for hit in hits]:
            raise DataError(f"{docid} was deleted and is still retrieved", path=self.path)
        self.say(f"   not retrieved; {hits[0].docid} is first now")
        self.index.rollback()
        first = self.index.search(BENDS, k=1)[0]
        self.say(f"   rolled back: {first.docid} is first again, in generation {self.index.generation}")

    def verify(self) -> None:
        result = self.index.verify()
        if result.problems:
            raise DataError(result.problems[0], path=self.path)
        sizes = f"{result.generations} generations, {result.blobs} blobs, {result.bytes / 1e6:.0f} MB"
        self.say(f"\n6. Verify: {sizes}; every checksum is correct, every row has its document.")
