"""A corpus: documents that arrive together, with their queries and relevance judgements; its records and the rules they obey.

corpus = Corpus.read("my-documents")       # BEIR folder, .jsonl, .tsv, or a folder of files
corpus.write("copy")                       # as a BEIR folder

Readers add file and line to the message of a broken rule; writers apply the same rules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from promptdsi.corpus.unread_kinds import UnreadKinds
from promptdsi.discovery import modules_of
from promptdsi.errors import DataError
from promptdsi.wording import agreeing, siblings_of, suggest_path

SPLITS = ("train", "dev", "test")
KINDS = ("annotated", "pseudo")
MAX_ID_CHARACTERS = 512
RESERVED_FIELDS = frozenset({"_id", "title", "text"})
EMPTY: Mapping[str, Any] = MappingProxyType({})
# C0 and C1 controls: they cannot be seen, and tab and line feed would break qrels and run files.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
LISTED = 20  # how many skipped lines are listed in full; all are counted


class Document(NamedTuple):
    """A retrievable text."""

    docid: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = EMPTY


def whole_text(document: Document) -> str:
    """The title and text of a document, as the encoder reads it."""
    return f"{document.title}. {document.text}" if document.title else document.text


class Query(NamedTuple):
    """A text that should retrieve a document: *annotated* came with the data, *pseudo* was generated from the document."""

    queryid: str
    text: str
    kind: str = "annotated"
    metadata: Mapping[str, Any] = EMPTY


class Judgement(NamedTuple):
    """One row of qrels: the document is relevant to the query if the score is positive."""

    queryid: str
    docid: str
    score: int = 1


class Pair(NamedTuple):
    """A query and one document it should retrieve."""

    query: Query
    docid: str


class ReadNotes:
    """How a corpus is read, and what was noted: with `skip` a bad record becomes a note instead of an error."""

    def __init__(self, *, skip: bool = False, follow_links: bool = False) -> None:
        self.skip, self.follow_links = skip, follow_links
        self.skipped: list[DataError] = []
        self.counts, self.unread = Counter[str](), UnreadKinds()
        self.remarks: list[str] = []  # about single files

    def refuse(self, error: DataError) -> None:
        """Raise the error, or note it if bad records are to be skipped."""
        if not self.skip:
            raise error
        self.skipped.append(error)

    def count(self, message: str, amount: int = 1) -> None:
        """Add to a counted note such as 'documents repeated with equal content, kept once'."""
        if amount:
            self.counts[message] += amount

    def remark(self, message: str) -> None:
        """Note something about one file."""
        self.remarks.append(message)

    def valid(self, record: Document | Query) -> bool:
        """Whether a record obeys our rules; one that does not is counted with the reason, as data sets of others hold some."""
        try:
            check_document(record) if isinstance(record, Document) else check_query(record)
            check_characters(record)
        except ValueError as error:
            self.count(f"{'documents' if isinstance(record, Document) else 'queries'} left out because {error}")
            return False
        return True

    def sentences(self) -> list[str]:
        """All notes, ready to print."""
        lines = [agreeing(amount, message) for message, amount in sorted(self.counts.items())]
        lines += self.unread.sentences() + _listed(self.remarks)
        if self.skipped:
            lines.append(agreeing(len(self.skipped), "could not be read and were skipped:"))
            lines += [f"  {line}" for line in _listed([str(error) for error in self.skipped])]
        return lines


def _listed(lines: list[str]) -> list[str]:
    return lines[:LISTED] + ([f"… and {len(lines) - LISTED:,} more"] if len(lines) > LISTED else [])


@dataclass(repr=False)
class Corpus:
    """Documents, their queries, and which query should retrieve which document (`qrels`, by split).

    Two corpora are equal when their contents are; the name does not count.
    """

    documents: list[Document]
    queries: list[Query] = field(default_factory=list)
    qrels: dict[str, list[Judgement]] = field(default_factory=dict)
    name: str = field(default="corpus", compare=False)
    source: str | None = field(default=None, compare=False)  # the folder of files it was read from

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        name: str | None = None,
        on_error: str | None = None,
        follow_links: bool = False,
        max_unknown: int = 0,
        splits: Sequence[str] = SPLITS,
        notes: ReadNotes | None = None,
    ) -> Corpus:
        """Read a corpus strictly.

        Parameters
        ----------
        path : BEIR folder, documents as .jsonl, pairs as .tsv (all plain or .gz), a folder of files, or a file (text, PDF, …)
        name : name of the corpus (default: the folder's or file's name)
        on_error : "stop" raises DataError at the first bad record, "skip" leaves bad records out and notes them; by default files are
            skipped and records of a data set are not
        follow_links : whether links in a folder are followed
        max_unknown : how many judgements may name unknown queries or documents (they are left out)
        splits : splits whose judgements are read; the files of other splits are not opened
        notes : collects duplicates, skipped records and judgements left out
        """
        if on_error not in (None, "stop", "skip"):
            raise ValueError(f"on_error={on_error!r}, expected 'stop' or 'skip'")
        path = Path(path)
        notes = notes or ReadNotes()
        format = format_of(path)
        notes.skip, notes.follow_links = on_error == "skip" or (on_error is None and format.NAME == "folder"), follow_links
        corpus: Corpus = format.read(path, notes, max_unknown=max_unknown, splits=splits)
        if not corpus.documents:
            why = f": {notes.skipped[0]}" if notes.skipped else ""
            raise DataError(f"holds no document{why}", path=path)
        corpus.source = str(path.resolve()) if format.NAME == "folder" and path.is_dir() else None
        corpus.name = name or (path.resolve().name if path.is_dir() else re.sub(r"\.(jsonl|tsv)(\.gz)?$", "", path.resolve().name))
        return corpus

    def write(self, path: str | Path, *, format: str = "beir") -> None:
        """Write the corpus so that `read` gives an equal one; ValueError for what the format cannot hold."""
        formats()[format].write(self, Path(path))

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"Corpus({self.name!r}, {len(self.documents):,} documents, {len(self.queries):,} queries)"

    def pairs(self, split: str, *, kinds: tuple[str, ...] = ("annotated", "pseudo")) -> list[Pair]:
        """Query–document pairs of a split, one for each document a query should retrieve."""
        queries = {query.queryid: query for query in self.queries}
        relevant = (judgement for judgement in self.qrels.get(split, ()) if judgement.score > 0)
        pairs = (Pair(queries[judgement.queryid], judgement.docid) for judgement in relevant)
        return [pair for pair in pairs if pair.query.kind in kinds]

    def only(self, docids: Collection[str]) -> Corpus:
        """A corpus of some of the documents, with their queries and judgements."""
        qrels = {split: [judgement for judgement in rows if judgement.docid in docids] for split, rows in self.qrels.items()}
        queryids = {judgement.queryid for rows in qrels.values() for judgement in rows}
        documents = [document for document in self.documents if document.docid in docids]
        queries = [query for query in self.queries if query.queryid in queryids]
        return Corpus(documents, queries, qrels, name=self.name, source=self.source)

    def counts(self) -> dict[str, int]:
        """Sizes as in the paper's Table 1: documents, annotated queries per split, pseudo-queries."""
        kinds = {query.queryid: query.kind for query in self.queries}
        sizes = {"documents": len(self.documents)}
        for split in SPLITS:
            queryids = {judgement.queryid for judgement in self.qrels.get(split, ()) if judgement.score > 0}
            sizes[split] = sum(kinds[queryid] == "annotated" for queryid in queryids)
        sizes["pseudo"] = Counter(kinds.values())["pseudo"]
        return sizes


def formats() -> dict[str, ModuleType]:
    """Formats by name, in the order in which a path is tried; `folder` takes any folder with a text file, so it comes last."""
    from promptdsi.corpus import formats as package  # the formats build corpora

    return dict(sorted(modules_of(package).items(), key=lambda item: item[0] == "folder"))


def format_of(path: Path) -> ModuleType:
    """The format of a path, or an error that names the known ones."""
    if not path.exists():
        raise DataError(f"does not exist{suggest_path(path, siblings_of(path))}", path=path)
    for candidate in formats().values():
        if candidate.recognizes(path):
            return candidate
    is_empty = path.is_dir() and not any(path.iterdir())
    expected = "a BEIR folder (with corpus.jsonl), a .jsonl or .tsv file (plain or .gz), or files such as .txt, .md, .pdf, .docx or .html"
    raise DataError("the folder is empty" if is_empty else f"is no corpus: expected {expected}", path=path)


def merge_corpora(corpora: Sequence[Corpus], name: str) -> Corpus:
    """Corpora as one; a query that several of them have stands once."""
    qrels: dict[str, list[Judgement]] = {}
    for corpus in corpora:
        for split, judgements in corpus.qrels.items():
            qrels.setdefault(split, []).extend(judgements)
    queries = {query.queryid: query for corpus in corpora for query in corpus.queries}
    return Corpus([document for corpus in corpora for document in corpus.documents], list(queries.values()), qrels, name=name)


def check_id(value: object, what: str = '"_id"') -> None:
    """Raise ValueError if `value` is not a valid id."""
    value = _string(value, what)
    if not value or value.isspace():
        raise ValueError(f"{what} is blank")
    if len(value) > MAX_ID_CHARACTERS:
        raise ValueError(f"{what} has {len(value)} characters, at most {MAX_ID_CHARACTERS} are allowed")
    if not value.isprintable() and (control := CONTROL.search(value)):
        raise ValueError(f"{what} holds the control character U+{ord(control[0]):04X}")


def check_text(value: object, what: str = '"text"') -> None:
    """Raise ValueError if `value` is not a text or is blank."""
    text = _string(value, what)
    if not text or text.isspace():
        raise ValueError(f"{what} is empty")


def check_document(document: Document) -> None:
    check_id(document.docid)
    check_text(document.text)
    _string(document.title, '"title"')
    if document.metadata and (clash := RESERVED_FIELDS & document.metadata.keys()):
        raise ValueError(f"metadata may not use the name {sorted(clash)[0]!r}")


def check_query(query: Query) -> None:
    check_id(query.queryid)
    check_text(query.text)
    if query.kind not in KINDS:
        raise ValueError(f'"kind" is {query.kind!r}, expected one of {", ".join(KINDS)}')
    if query.metadata and (clash := {"_id", "text", "kind"} & query.metadata.keys()):
        raise ValueError(f"metadata may not use the name {sorted(clash)[0]!r}")


def check_characters(value: object) -> None:
    """Raise ValueError for NUL and lone surrogates at any depth: a UTF-8 file cannot hold them."""
    for text in _strings(value):
        if "\x00" in text:
            raise ValueError("holds a NUL character")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"holds the lone surrogate U+{ord(text[error.start]):04X}") from None


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _string(value: object, what: str) -> str:
    """The value if it is a string; the error calls its type as JSON does."""
    if isinstance(value, str):
        return value
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    raise ValueError(f"{what} is {names.get(type(value), f'a {type(value).__name__}')}, expected a string")
