"""Any data set of the ir_datasets library: `irds:beir/scifact`, `irds:vaswani`, … (extra `irds`).

Documents come from the named data set; judgements from it and from its subsets train, dev (validation) and test.
"""

from __future__ import annotations

from typing import Any

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.errors import OfflineError, PromptDSIError, UsageError
from promptdsi.files import offline_by_environment

NAME = "irds"
SUBSETS = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "test": "test"}


def build(request: Request) -> SourceData:
    if not request.name:
        raise UsageError("name the data set after a colon, such as irds:vaswani")
    if request.offline or offline_by_environment():
        raise OfflineError("irds: sources may download and cannot be used offline; build the stream once with a network and keep it")
    try:
        import ir_datasets
    except ImportError:
        raise PromptDSIError("irds: sources need the ir_datasets library: pip install 'promptdsi[irds]'") from None
    if request.name not in ir_datasets.registry:
        raise UsageError(f"ir_datasets knows no data set {request.name!r}")
    try:
        corpus = _corpus(ir_datasets, request)
    except OSError as error:
        raise OfflineError(f"ir_datasets could not get {request.name}: {error}") from None
    origin = f"ir_datasets {request.name}"
    return SourceData(corpus, origin, "as the data set's; see ir_datasets' page for it")


def _corpus(ir_datasets: Any, request: Request) -> Corpus:
    base = ir_datasets.load(request.name)
    if not base.has_docs():
        raise PromptDSIError(f"{request.name} has no documents")
    documents = _documents(base, request)
    docids = {document.docid for document in documents}
    queries: dict[str, Query] = {}
    qrels: dict[str, list[Judgement]] = {}
    unknown = 0
    for split, subset in _subsets_with_qrels(ir_datasets, request.name):
        texts = {query.query_id: query.default_text() for query in subset.queries_iter()}
        rows = {(row.query_id, row.doc_id): int(row.relevance) for row in subset.qrels_iter()}
        for (queryid, docid), score in rows.items():
            query = Query(queryid, texts.get(queryid, ""))
            if docid not in docids or not request.notes.valid(query):
                unknown += 1
                continue
            queries[queryid] = query
            qrels.setdefault(split, []).append(Judgement(queryid, docid, score))
    if unknown > request.max_unknown and request.on_error != "skip":
        raise PromptDSIError(
            f"{request.name}: {unknown:,} judgements name unknown queries or documents, {request.max_unknown:,} allowed (--max-unknown)"
        )
    request.notes.count("judgements name unknown queries or documents and were left out", unknown)
    return Corpus(documents, list(queries.values()), qrels, name=request.name.replace("/", "-"))


def _documents(dataset: Any, request: Request) -> list[Document]:
    documents: dict[str, Document] = {}
    with request.progress(f"reading {request.name}", unit="documents") as advance:
        for record in dataset.docs_iter():
            advance(1)
            title = getattr(record, "title", "") or ""
            text = getattr(record, "text", None) or record.default_text()
            document = Document(record.doc_id, text, title)
            if not request.notes.valid(document):
                continue
            if documents.setdefault(document.docid, document) != document:
                raise PromptDSIError(f"{request.name} holds the docid {document.docid!r} twice with other content")
    return list(documents.values())


def _subsets_with_qrels(ir_datasets: Any, name: str) -> list[tuple[str, Any]]:
    """The data sets with judgements and their splits: the named one itself, and its subsets."""
    own_split = SUBSETS.get(name.rsplit("/", 1)[-1], "test")
    candidates = [(own_split, name)] + [(split, f"{name}/{subset}") for subset, split in SUBSETS.items()]
    datasets = [(split, ir_datasets.load(identifier)) for split, identifier in candidates if identifier in ir_datasets.registry]
    return [(split, dataset) for split, dataset in datasets if dataset.has_qrels() and dataset.has_queries()]
