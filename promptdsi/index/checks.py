"""What is refused before or after learning, in words a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import check_characters, check_document
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.index.results import Report
from promptdsi.index.store import Store

if TYPE_CHECKING:
    from promptdsi.index.options import Options

NO_PROBES = "--max-drift needs probe queries to measure with: none were kept; see --keep-probes"


def check_corpus(corpus: Corpus) -> None:
    """What readers refuse in files is refused in Python too."""
    seen: set[str] = set()
    for document in corpus.documents:
        try:
            check_document(document)
            check_characters([document.docid, document.title, document.text, document.metadata])
            if document.docid in seen:
                raise ValueError("its docid stands twice in the corpus")
        except ValueError as error:
            raise DataError(f"the document {document.docid!r:.80} cannot be learned: {error}", path=corpus.name) from None
        seen.add(document.docid)
    if not seen:
        raise DataError("holds no document", path=corpus.name)


def check_bound(options: Options) -> None:
    if options.max_drift is not None and not 0 <= options.max_drift <= 1:
        raise UsageError(f"--max-drift {options.max_drift}: expected a fall in Hits@10 between 0 and 1")


def check_probes(corpus: Corpus, options: Options) -> None:
    if options.keep_probes and not corpus.pairs("dev", kinds=("annotated",)):
        raise UsageError(f"--keep-probes {options.keep_probes} but {corpus.name} has no dev queries to keep")


def name_of(corpus: Corpus, options: Options) -> str:
    name = options.name if options.name is not None else corpus.name
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise UsageError(f"a corpus needs a name of 1 to 200 printable characters, not {name[:50]!r}; give one with --name")
    return name


def refuse_drift(store: Store, report: Report, bound: float | None, then: str) -> None:
    if bound is None or (report.drift is not None and report.drift.fall <= bound):
        return
    store.clean()
    if report.drift is None:
        raise UsageError(f"--max-drift {bound}: no document of any probe query is left to measure with; {then}")
    raise PromptDSIError(
        f"learning {report.corpus} lets Hits@10 on {report.drift.n} probe queries fall by {report.drift.fall:.3f}, "
        f"more than --max-drift {bound}: it was not committed, {then}"
    )
