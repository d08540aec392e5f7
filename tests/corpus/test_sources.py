"""Sources, on small raw files in the official formats made here."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from promptdsi import Corpus, Query
from promptdsi.corpus.sources import Request, build_stream, nq320k, source_names, source_of, squadx
from promptdsi.corpus.sources.squadx import FILES, INSIDE
from promptdsi.errors import OfflineError, PromptDSIError


def squad_file(paragraphs: list[tuple[str, str, list[tuple[str, str]]]]) -> dict[str, Any]:
    """SQuAD's JSON for (title, context, [(id, question)])."""
    return {
        "data": [
            {"title": title, "paragraphs": [{"context": context, "qas": [{"id": i, "question": q, "answers": []} for i, q in questions]}]}
            for title, context, questions in paragraphs
        ]
    }


@pytest.fixture
def squad_folder(tmp_path: Path) -> Path:
    contents = {name: squad_file([]) for name in FILES}
    contents["squaddev_v1.1.json"] = squad_file(
        [
            (
                "Some_Title",
                "First   paragraph\nof text.",
                [("1", "Who wrote it?"), ("2", "who wrote it"), ("3", "When?"), ("4", "Where was it?")],
            ),
            ("Other", "Second paragraph.", [("5", "When ?"), ("6", "How many are there?"), ("7", "How big is it?")]),
            ("Other", "Thin paragraph.", [("8", "Just one question?")]),
        ]
    )
    contents["new_wiki_v1.0.json"] = squad_file([("Again", "First paragraph of text.", [("9", "A fifth question?")])])
    contents["reddit_v1.0.json"] = squad_file([("r/title", "A comment.", [("10", "What is said?"), ("11", "By whom is it said?")])])
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_squadx_follows_its_rules(squad_folder: Path) -> None:
    corpus = squadx.corpus_from(squad_folder)
    # Equal paragraphs are one document, white space collapsed; the repeated question and the one under two documents are gone.
    first = corpus.documents[0]
    assert (first.text, first.title, first.metadata) == ("First paragraph of text.", "Some Title", {"domain": "wiki"})
    queryids = {
        d.docid: sorted(p.query.queryid for s in ("train", "dev", "test") for p in corpus.pairs(s) if p.docid == d.docid)
        for d in corpus.documents
    }
    assert queryids[first.docid] == ["wiki-1", "wiki-4", "wiki-9"]
    assert [document.text for document in corpus.documents] == ["First paragraph of text.", "Second paragraph.", "A comment."]
    assert corpus.documents[2].title == ""  # none for reddit


@pytest.mark.parametrize(("count", "test", "dev"), [(3, 1, 0), (5, 1, 1), (12, 1, 1)])
def test_squadx_splits_by_number_of_questions(count: int, test: int, dev: int) -> None:
    questions = [Query(f"q{i}", f"question {i}") for i in range(count)]
    splits = squadx.splits_of("doc", questions)
    assert (splits.count("test"), splits.count("dev")) == (test, dev)
    assert squadx.splits_of("doc", questions[::-1]) == splits[::-1]  # by id, not by order


def test_squadx_documents_with_two_or_four_questions_give_one_more_now_and_then() -> None:
    def share(count: int, name: str) -> float:
        questions = [Query(f"q{i}", "") for i in range(count)]
        return sum(name in squadx.splits_of(f"doc{i}", questions) for i in range(2000)) / 2000

    assert share(2, "test") == pytest.approx(0.5, abs=0.05)
    assert share(4, "dev") == pytest.approx(0.25, abs=0.05)
    assert share(4, "train") == 1.0


def test_squadx_takes_its_five_files_out_of_the_archive(squad_folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in FILES:
            tar.add(squad_folder / name, INSIDE + name)
        removed = tarfile.TarInfo(INSIDE + "nyt_v1.0_removed.json")
        tar.addfile(removed, io.BytesIO())
    (tmp_path / "out").mkdir()
    squadx.unpack(archive, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)


def test_offline_and_not_cached_is_a_clear_sentence(run: Any, tmp_path: Path) -> None:
    outcome = run("data", "squadx", "-o", "s", "--offline", PROMPTDSI_CACHE=str(tmp_path / "cache"))
    assert outcome.returncode == 1
    assert "squadx is not in the cache" in outcome.stderr and "bigbench==1.0.0" in outcome.stderr
    assert run("data", "squadx", "-o", "s", PROMPTDSI_CACHE=str(tmp_path / "cache"), HF_HUB_OFFLINE="1").returncode == 1


def nq_example(number: int, page: int) -> dict[str, Any]:
    """One line of the official simplified train file."""
    return {
        "annotations": [],
        "document_text": f"<H1> Page {page} </H1> <P> Words about page {page} . 3 < 4 </P>",
        "long_answer_candidates": [],
        "question_text": f"what is question {number}",
        "document_url": f"https://example.org//w/index.php?title=Page_{page}&amp;oldid=8000{number}",
        "example_id": number,
    }


def nq_dev_example(number: int, page: int) -> dict[str, Any]:
    """One line of the official dev file, which comes in the whole format."""
    tokens = [("<P>", True), ("Words", False), ("about", False), ("page", False), (str(page), False), ("</P>", True)]
    return {
        "document_title": f"page {page}",
        "document_tokens": [{"token": token, "html_token": html, "start_byte": 0, "end_byte": 1} for token, html in tokens],
        "document_url": "",
        "question_text": f"dev question {number}",
        "example_id": 10_000 + number,
    }


@pytest.fixture
def nq_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "nq"
    folder.mkdir()
    train = [nq_example(number, number % 100) for number in range(300)]
    with gzip.open(folder / "v1.0-simplified_simplified-nq-train.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(example) + "\n" for example in train)
    with gzip.open(folder / "v1.0-simplified_nq-dev-all.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(nq_dev_example(number, number)) + "\n" for number in range(50))
    return folder


def test_nq320k_follows_the_papers_construction(nq_folder: Path, run: Any, tmp_path: Path) -> None:
    outcome = run("data", "nq320k", "--raw", nq_folder, "-o", "s", "--chunk", "2", "--json")
    assert outcome.returncode == 0, outcome.stderr
    manifest = json.loads(outcome.stdout)
    sizes = [entry["documents"] for entry in manifest["corpora"]]
    assert sizes == [90, 2, 2, 2, 2, 1]  # 90 % old; 9 % new in chunks
    assert manifest["extra"][0]["documents"] == 1  # 1 % tune
    everything = [*manifest["corpora"], *manifest["extra"]]
    assert sum(entry["train"] + entry["dev"] for entry in everything) == 300
    assert sum(entry["test"] for entry in everything) == 50  # official dev queries are the test queries
    assert (manifest["corpora"][0]["train"], manifest["corpora"][0]["dev"]) == (216, 54)  # 80/20 exactly, over the old documents
    new = manifest["corpora"][1:]
    assert (sum(e["train"] for e in new), sum(e["dev"] for e in new)) == (22, 5)  # and over the new ones as a whole
    document = Corpus.read(tmp_path / "s/d0").documents[0]
    assert document.text.startswith("Page") and "<" in document.text and "<P>" not in document.text  # words, no markup; 3 < 4 stays


def test_nq_pages_are_unique_by_normalised_title() -> None:
    assert nq320k.title_of(nq_example(1, 7)) == "Page 7"
    assert nq320k.normalize_title("Page 7") == nq320k.normalize_title(nq320k.title_of(nq_dev_example(1, 7)))
    assert nq320k.page_words(nq_dev_example(1, 7)) == ["Words", "about", "page", "7"]


def test_nq_cut_pages_are_counted_and_skipping_works(nq_folder: Path, run: Any) -> None:
    (nq_folder / "more-train.jsonl").write_text('{"question_text": "x"}\nnonsense\n')
    outcome = run("data", "nq320k", "--raw", nq_folder, "-o", "s", "--on-error", "skip", "--max-words", "4")
    assert outcome.returncode == 0, outcome.stderr
    assert "2 could not be read and were skipped" in outcome.stderr and "texts are longer than 4 words and were cut there" in outcome.stderr
    assert json.loads((nq_folder.parent / "s/stream.json").read_text())["split"]["max_words"] == 4


def test_nq_with_a_broken_example_names_its_line(nq_folder: Path, run: Any) -> None:
    (nq_folder / "more-train.jsonl").write_text('{"question_text": "x"}\n')
    outcome = run("data", "nq320k", "--raw", nq_folder, "-o", "s")
    assert outcome.returncode == 1
    assert "more-train.jsonl:1: not a Natural Questions example" in outcome.stderr


def test_a_malformed_raw_line_is_counted_and_skipped(nq_folder: Path, marco_folder: Path, run: Any) -> None:
    (nq_folder / "more-train.jsonl").write_text('{"question_text": "x"}\n' + json.dumps(nq_example(400, 7)) + "\nnonsense\n")
    outcome = run("data", "nq320k", "--raw", nq_folder, "-o", "nq-stream", "--json")
    assert outcome.returncode == 0 and "2 malformed lines of the raw files were skipped" in outcome.stderr
    assert "more-train.jsonl:1: not a Natural Questions example" in outcome.stderr
    manifest = json.loads(outcome.stdout)
    assert manifest["split"]["malformed_lines"] == 2
    assert sum(entry["train"] + entry["dev"] for entry in [*manifest["corpora"], *manifest["extra"]]) == 301
    stopped = run("data", "nq320k", "--raw", nq_folder, "-o", "s", "--on-error", "stop")
    assert stopped.returncode == 1 and "more-train.jsonl:1: not a Natural Questions example" in stopped.stderr
    with (marco_folder / "msmarco-doctrain-qrels.tsv").open("a") as file:
        file.write("1 0 D1\n")
    request = Request(raw=marco_folder)
    assert build_stream("msmarco300k", request).split["malformed_lines"] == 1
    assert build_stream("msmarco300k", Request(raw=marco_folder), new=2, share=0.1).split["malformed_lines"] == 1
    assert request.notes.counts["malformed lines of the raw files were skipped"] == 1


def test_nq_another_split_of_the_same_pages(nq_folder: Path) -> None:
    stream = build_stream("nq320k", Request(raw=nq_folder), new=2, share=0.1)
    assert [len(corpus) for corpus in stream.corpora] == [80, 10, 10]


@pytest.fixture
def marco_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "marco"
    folder.mkdir()
    with gzip.open(folder / "msmarco-docs.tsv.gz", "wt") as file:
        file.writelines(f"D{i}\thttps://example.org/{i}\tTitle {i}\tBody of  document {i}\n" for i in range(120))
        file.write("D120\thttps://example.org/120\tNo body\t\n")
    (folder / "msmarco-doctrain-queries.tsv").write_text("".join(f"{i}\ttrain query {i}\n" for i in range(101)))
    (folder / "msmarco-doctrain-qrels.tsv").write_text("".join(f"{i} 0 D{i} 1\n" for i in range(100)) + "100 0 D120 1\n")
    (folder / "msmarco-docdev-queries.tsv").write_text("".join(f"{1000 + i}\tdev query {i}\n" for i in range(20)))
    (folder / "msmarco-docdev-qrels.tsv").write_text("".join(f"{1000 + i} 0 D{i} 1\n" for i in range(20)))
    return folder


def test_msmarco300k_follows_the_papers_construction(marco_folder: Path, run: Any, tmp_path: Path) -> None:
    outcome = run("data", "msmarco300k", "--raw", marco_folder, "-o", "s", "--chunk", "3", "--json")
    assert outcome.returncode == 0, outcome.stderr
    manifest = json.loads(outcome.stdout)
    assert [entry["documents"] for entry in manifest["corpora"]] == [90, 3, 3, 3]  # only judged documents: 100 of 121
    everything = [*manifest["corpora"], *manifest["extra"]]
    assert sum(entry["test"] for entry in everything) == 20
    assert '1 document left out because "text" is empty' in outcome.stderr
    document = Corpus.read(tmp_path / "s/d1").documents[0]
    assert document.text == f"Body of document {document.docid[1:]}" and document.title == f"Title {document.docid[1:]}"


def test_msmarco_a_query_with_documents_in_several_corpora_stands_once(marco_folder: Path, run: Any, tmp_path: Path) -> None:
    with (marco_folder / "msmarco-doctrain-qrels.tsv").open("a") as file:
        file.writelines(f"0 0 D{i} 1\n" for i in range(0, 100))  # query 0 points at every document
        file.write("9999 0 D1 1\n")
    outcome = run("data", "msmarco300k", "--raw", marco_folder, "-o", "s", "--chunk", "3")
    assert "1 judgement names unknown queries and was left out" in outcome.stderr
    homes = [
        name for name in ("d0", "d1", "d2", "d3", "tune") for query in Corpus.read(tmp_path / "s" / name).queries if query.queryid == "ms-0"
    ]
    assert homes == ["d3"]


def test_msmarco_with_a_missing_or_broken_file(marco_folder: Path, run: Any) -> None:
    (marco_folder / "msmarco-doctrain-qrels.tsv").write_text("1 0 D1\n")
    outcome = run("data", "msmarco300k", "--raw", marco_folder, "-o", "s")
    assert outcome.returncode == 1 and "msmarco-doctrain-qrels.tsv:1: 3 cells" in outcome.stderr
    (marco_folder / "msmarco-doctrain-qrels.tsv").unlink()
    assert "holds no msmarco-doctrain-qrels.tsv" in run("data", "msmarco300k", "--raw", marco_folder, "-o", "s").stderr


def test_irds_reads_any_registered_data_set(tmp_path: Path) -> None:
    import ir_datasets
    from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries
    from ir_datasets.util import LocalDownload

    def local(name: str, text: str) -> Any:
        (tmp_path / name).write_text(text)
        return LocalDownload(tmp_path / name)

    docs = TsvDocs(local("docs", "".join(f"d{i}\ttext of {i}\n" for i in range(30)) + "d30\t \n"))
    queries = TsvQueries(local("queries", "".join(f"q{i}\tasks for {i}\n" for i in range(30))))
    for part, rows in {"train": range(20), "validation": range(20, 25), "test": range(25, 30)}.items():
        qrels = TrecQrels(local(f"qrels-{part}", "".join(f"q{i} 0 d{i} 1\n" for i in rows)), {1: "relevant"})
        ir_datasets.registry.register(f"promptdsi-test/{part}", ir_datasets.Dataset(docs, queries, qrels))
    ir_datasets.registry.register("promptdsi-test", ir_datasets.Dataset(docs))
    request = Request()
    stream = build_stream("irds:promptdsi-test", request, new=1, share=0.1)
    counts = [corpus.counts() for corpus in stream.corpora]
    assert [count["documents"] for count in counts] == [27, 3]
    assert [sum(count[split] for count in counts) for split in ("train", "dev", "test")] == [20, 5, 5]
    assert stream.name == "promptdsi-test"
    with pytest.raises(PromptDSIError, match="knows no data set 'nothing-here'"):
        build_stream("irds:nothing-here", request)


def test_irds_is_refused_offline() -> None:
    with pytest.raises(OfflineError, match="cannot be used offline"):
        build_stream("irds:vaswani", Request(offline=True))


def test_irds_applies_our_rules_to_what_it_reads(tmp_path: Path) -> None:
    import ir_datasets
    from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries
    from ir_datasets.util import LocalDownload

    contents = {"docs": "d1\tone\nd2\ttwo\x00\n", "queries": "q1\task\nq2\t \n", "qrels": "q1 0 d1 1\nq2 0 d1 1\nq1 0 d9 1\n"}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    docs, queries, qrels = (LocalDownload(tmp_path / name) for name in contents)
    dataset = ir_datasets.Dataset(TsvDocs(docs), TsvQueries(queries), TrecQrels(qrels, {1: "relevant"}))
    ir_datasets.registry.register("promptdsi-strict", dataset)
    with pytest.raises(PromptDSIError, match="2 judgements name unknown queries or documents, 0 allowed"):
        build_stream("irds:promptdsi-strict", Request(), new=0)
    request = Request(max_unknown=2)
    stream = build_stream("irds:promptdsi-strict", request, new=0)
    assert [document.docid for document in stream.corpora[0].documents] == ["d1"]
    assert any("document left out because holds a NUL" in sentence for sentence in request.notes.sentences())


def test_every_source_is_found_without_being_listed() -> None:
    assert source_names() == ["demo", "irds", "msmarco300k", "nq320k", "squadx"]
    assert source_of("irds:a/b")[1] == "a/b"


def test_one_notes_object_per_request() -> None:
    assert Request().notes is not Request().notes
