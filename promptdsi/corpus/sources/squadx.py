"""squadx: SQuAD v1.1 dev and the four SQuADShifts sets as a retrieval benchmark; no account, one download.

A document is a paragraph; a query is a question that belongs to one paragraph only. 9,725 documents and 46,601 queries in
four domains. The data has its own licences and a "never in training corpora" canary: it is built in the per-user cache
on the user's machine and not redistributed.
"""

from __future__ import annotations

import hashlib
import json
import string
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.errors import PromptDSIError
from promptdsi.pypi import Package, cached

NAME = "squadx"
ARCHIVE = Package("bigbench==1.0.0", "1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2", 358)
INSIDE = "bigbench-1.0.0/bigbench/benchmark_tasks/squad_shifts/"
# Both Wikipedia sets are one domain; this order is the order in which the domain stream arrives.
FILES = {
    "squaddev_v1.1.json": "wiki",
    "new_wiki_v1.0.json": "wiki",
    "nyt_v1.0.json": "nyt",
    "reddit_v1.0.json": "reddit",
    "amazon_reviews_v1.0.json": "amazon",
}
ORIGIN = f"SQuAD v1.1 dev and SQuADShifts, from the source archive of {ARCHIVE.requirement} (sha256 {ARCHIVE.sha256})"
LICENCE = "SQuAD CC BY-SA 4.0; SQuADShifts CC BY 4.0; not to be used in training corpora of language models"
_PUNCTUATION = str.maketrans("", "", string.punctuation + "‘’“”–—…")


def build(request: Request) -> SourceData:
    folder = cached(NAME, ARCHIVE, unpack, offline=request.offline, quiet=request.quiet)
    return SourceData(corpus_from(folder), ORIGIN, LICENCE)


def unpack(archive: Path, folder: Path) -> None:
    """Take the five SQuAD-format files out of the archive."""
    members = {INSIDE + name for name in FILES}
    with tarfile.open(archive, "r|gz") as tar:  # streamed: the archive is large and we need little of it
        for member in tar:
            if member.name in members and (content := tar.extractfile(member)):
                (folder / Path(member.name).name).write_bytes(content.read())
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise PromptDSIError(f"{ARCHIVE.requirement} does not hold {', '.join(missing)}")


def corpus_from(folder: Path) -> Corpus:
    """Build the corpus from the five files."""
    documents: dict[str, Document] = {}
    questions: dict[str, list[Query]] = {}
    for name, domain in FILES.items():
        for document, document_questions in _paragraphs(folder / name, domain):
            documents.setdefault(document.docid, document)  # equal paragraphs are one document
            questions.setdefault(document.docid, []).extend(document_questions)
    unambiguous = {docid: rest for docid, rest in _unambiguous(questions).items() if len(rest) >= 2}
    queries: list[Query] = []
    qrels: dict[str, list[Judgement]] = {"train": [], "dev": [], "test": []}
    for docid, rest in unambiguous.items():
        for question, split in zip(rest, splits_of(docid, rest), strict=True):
            queries.append(question)
            qrels[split].append(Judgement(question.queryid, docid))
    return Corpus([documents[docid] for docid in unambiguous], queries, qrels, name=NAME)


def normalize_question(text: str) -> str:
    """A question without case, punctuation and repeated white space, to compare it with others.

    Examples
    --------
    >>> normalize_question("What's  in a NAME?") == normalize_question("whats in a name")
    True
    """
    return " ".join(text.casefold().translate(_PUNCTUATION).split())


def splits_of(docid: str, questions: list[Query]) -> list[str]:
    """The split of each question of a document; every document keeps at least one for training.

    Three or more give one to test, five or more also one to dev; of documents with two about half, of those with four about
    a quarter, give one more (two: their only held-out one to test; four: a second held-out one to dev).
    """
    order = sorted(questions, key=lambda question: _hash(question.queryid))
    coin = int(_hash(docid)[:8], 16) % 4
    count = len(questions)
    test = 1 if count >= 3 or (count == 2 and coin < 2) else 0
    dev = 1 if count >= 5 or (count == 4 and coin < 1) else 0
    split = {question.queryid: name for question, name in zip(order, ["test"] * test + ["dev"] * dev, strict=False)}
    return [split.get(question.queryid, "train") for question in questions]


def _paragraphs(path: Path, domain: str) -> Iterator[tuple[Document, list[Query]]]:
    for article in json.loads(path.read_text("utf-8"))["data"]:
        title = "" if domain == "reddit" else " ".join(article.get("title", "").replace("_", " ").split())
        for paragraph in article["paragraphs"]:
            text = " ".join(paragraph["context"].split())
            docid = f"{domain}-{_hash(text)[:12]}"
            questions = (Query(f"{domain}-{qa['id']}", " ".join(qa["question"].split())) for qa in paragraph["qas"])
            yield (
                Document(docid, text, title, {"domain": domain}),
                [question for question in questions if normalize_question(question.text)],
            )


def _unambiguous(questions: dict[str, list[Query]]) -> dict[str, list[Query]]:
    """Each document's questions without repeats and without those that other documents have too."""
    unique: dict[str, dict[str, Query]] = {docid: {} for docid in questions}
    for docid, document_questions in questions.items():
        for question in document_questions:
            unique[docid].setdefault(normalize_question(question.text), question)
    count = Counter(text for by_text in unique.values() for text in by_text)
    return {docid: [question for text, question in by_text.items() if count[text] == 1] for docid, by_text in unique.items()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
