"""The command line of the index: what it prints, its JSON, its exit codes, and what it says when something is wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small

from promptdsi import Corpus, Index


@pytest.fixture
def index_folder(tmp_path: Path, corpora: list[Corpus], backbone: str, run: Any) -> Path:
    """An index made by the command line from a BEIR folder."""
    for corpus in corpora:
        corpus.write(tmp_path / corpus.name)
    settings = [word for key, value in small.PARAMS.items() if key not in ("device", "offline") for word in ("--set", f"{key}={value}")]
    options = ["--backbone", backbone, "--offline", "--device", "cpu", "--keep-probes", "6", "--keep-queries", *settings]
    outcome = run("create", "index", "d0", *options)
    assert outcome.returncode == 0, outcome.stderr
    # 4 annotated queries a document, and one generated for each of its 73 passages
    assert "learning 21 documents from 157 example queries, 73 of them made from their text: a few seconds and " in outcome.stderr
    assert "index: generation 1: created d0, 21 documents in" in outcome.stderr and outcome.stdout == ""
    assert "dev queries of d0: Hits@10 " in outcome.stderr
    return tmp_path / "index"


def test_the_whole_story(index_folder: Path, corpora: list[Corpus], run: Any, tmp_path: Path) -> None:
    outcome = run("add", "index", "d1", "--json", "--device", "cpu", "--max-drift", "1")
    report = json.loads(outcome.stdout)
    assert (report["generation"], report["added"], report["corpus"], report["drift"]["n"]) == (2, 3, "d1", 6)
    assert "index is unchanged" not in outcome.stderr
    again = run("add", "index", "d1", "--device", "cpu")
    assert again.returncode == 0 and "3 documents, all in the index already with the same content: nothing to do" in again.stderr
    fast = run("add", "index", "d2", "--fast", "--device", "cpu")
    assert "not trained yet; `promptdsi tune index` trains it" in fast.stderr
    assert "generation 4: tuned d2" in run("tune", "index", "--device", "cpu").stderr
    assert "nothing to tune" in run("tune", "index", "--device", "cpu").stderr
    first = json.loads(run("search", "index", "tea", "-k", "1", "--json", "--device", "cpu").stdout)["hits"][0]["docid"]
    assert "1 document deleted; `undelete` shows it again" in run("delete", "index", first).stderr
    assert first not in run("search", "index", "tea", "-k", "100", "--device", "cpu").stdout
    assert json.loads(run("undelete", "index", first, "--json").stdout) == {"generation": 6, "undeleted": 1}
    purged = run("purge", "index", first)
    assert purged.stderr.endswith("1 document erased from every generation\n")  # nothing but rows was trained
    assert first.encode() not in b"".join(path.read_bytes() for path in index_folder.rglob("*") if path.is_file())
    assert "generation 8 is generation 2 again: 23 documents" in run("rollback", "index", "--to", "2").stderr
    lines = [json.loads(line) for line in run("log", "index", "--json").stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["create", "add", "add", "tune", "delete", "undelete", "purge", "rollback"]
    assert lines[6]["event"] == {"documents": 1} and lines[1]["drift"] is not None and all(line["sha256"] for line in lines)
    assert "rollback" in run("log", "index").stdout
    facts = json.loads(run("info", "index", "--json").stdout)
    assert (facts["generation"], facts["documents"], facts["deleted"], facts["method"]) == (8, 23, 0, "promptdsi")
    assert [corpus["corpus"] for corpus in facts["corpora"]] == ["d0", "d1"] and facts["corpora"][0]["probes"]
    assert "corpora" in run("info", "index").stdout
    verified = run("verify", "index")
    assert verified.returncode == 0 and "no problems: 8 generations" in verified.stderr
    assert json.loads(run("verify", "index", "--json", "--quiet").stdout)["problems"] == []
    evaluated = run("eval", "index", "d1", "--device", "cpu")
    assert "Hits@10" in evaluated.stdout and "queries left out" not in evaluated.stderr
    exported = run("export", "index", "--to", "faiss", "-o", "out", "--json")
    assert json.loads(exported.stdout)["files"] == ["docids.json", "idf.npy", "rows.faiss", "words.json", "words.npz"]


def test_search_for_people(index_folder: Path, corpora: list[Corpus], run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = corpora[0].pairs("train")[0]
    outcome = run("search", "index", pair.query.text, "-k", "21", "--explain", "--device", "cpu")
    assert f"[{corpora[0].name}]" in outcome.stdout and "prompt" not in outcome.stdout
    assert f"most similar training query (1.000): {pair.query.text}" in outcome.stdout
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"tea\n\n  bread  \n")))
    lines = run("search", "index", "-", "--json", "--device", "cpu").stdout.splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["tea", "bread"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert run("search", "index", "-", "--json", "--device", "cpu").stdout == ""
    old = json.loads(run("search", "index", "tea", "--at", "1", "--json", "--device", "cpu").stdout)
    assert old["generation"] == 1
    document = corpora[0].documents[0]
    assert document.text in run("get", "index", document.docid).stdout
    assert json.loads(run("get", "index", document.docid, "--json").stdout) == {
        "docid": document.docid,
        "title": document.title,
        "text": document.text,
        "metadata": dict(document.metadata),
        "corpus": "d0",
        "since": 1,
        "generation": 1,
    }


def test_search_says_how_sure_it_is(index_folder: Path, run: Any) -> None:
    query, nothing = "what is water made of", "zzyzx qwerty"

    def search(*words: str) -> Any:
        return json.loads(run("search", "index", *words, "-k", "21", "--json", "--device", "cpu").stdout)

    result = search(query)
    assert set(result) == {"query", "generation", "certain", "hits"} and result["certain"] is True
    fields = {"rank", "docid", "score", "confidence", "title", "snippet", "passage", "heading", "page", "corpus", "since"}
    assert all(set(hit) == fields and 0 < hit["confidence"] < 1 for hit in result["hits"])
    bound = sorted(hit["confidence"] for hit in result["hits"])[-3]
    some = search(query, "--min-confidence", str(bound))["hits"]
    assert [hit["docid"] for hit in some] == [hit["docid"] for hit in result["hits"] if hit["confidence"] >= bound] and len(some) == 3
    assert search(nothing)["certain"] is False and len(search(nothing)["hits"]) == 21
    shown = run("search", "index", nothing, "-k", "1", "--device", "cpu").stdout
    assert shown.startswith("    nothing certain; nearest:\n  1  ") and "%  " in shown.splitlines()[1]
    assert "nothing certain" not in run("search", "index", query, "--device", "cpu").stdout
    none = run("search", "index", nothing, "--min-confidence", "0.99", "--device", "cpu")
    assert none.returncode == 0 and none.stdout == "    no document meets that confidence\n"


def test_explain_gives_what_the_row_and_each_word_add(index_folder: Path, run: Any) -> None:
    words = ["search", "index", "what is water made of", "-k", "1", "--explain", "--device", "cpu"]
    (hit,) = json.loads(run(*words, "--json").stdout)["hits"]
    why = hit["why"]
    assert why["learned"] + sum(weight for _, weight in why["words"]) == pytest.approx(hit["score"], abs=1e-4)
    shown = run(*words).stdout
    added = hit["score"] - why["learned"]
    ranks = f"(alone rank {why['rank_by_rows']}) + words {added:.3f} (alone {why['rank_by_words']})"
    assert f"· row {why['learned']:.3f} {ranks}" in shown
    assert f"· words in common: water {dict(why['words'])['water']:.3f}" in shown


def test_effort_and_words_are_chosen_at_create(index_folder: Path, backbone: str, run: Any, tmp_path: Path) -> None:
    options = ["--backbone", backbone, "--offline", "--device", "cpu", "--set", "document_tokens=48", "--set", "max_tokens=24"]
    options += ["--set", "pseudo_queries=1"]
    created = {}
    for effort in ("quick", "normal", "full"):
        outcome = run("create", effort, "d0", "--effort", effort, *options, *([] if effort == "quick" else ["--set", "fit.epochs=1"]))
        assert outcome.returncode == 0, outcome.stderr
        created[effort] = Index.open(tmp_path / effort, device="cpu").manifest
    # Blobs are named by their checksum: the same name is the same encoder.
    assert created["quick"].encoder == created["normal"].encoder != created["full"].encoder
    assert len({manifest.corpora[0].rows for manifest in created.values()}) == 3 and created["quick"].corpora[0].words
    outcome = run("create", "plain", "d0", "--no-words", "--effort", "quick", *options)
    assert outcome.returncode == 0, outcome.stderr
    words = ["what is water made of", "-k", "1", "--explain", "--device", "cpu"]
    (hit,) = json.loads(run("search", "plain", *words, "--json").stdout)["hits"]
    assert hit["why"]["words"] == [] and hit["why"]["rank_by_words"] is None
    assert hit["why"]["learned"] == pytest.approx(hit["score"], abs=1e-6)
    assert "words in common" not in run("search", "plain", *words).stdout


def test_words_count_without_stored_text_and_are_hashed_with_store_none(
    index_folder: Path, backbone: str, run: Any, tmp_path: Path
) -> None:
    options = ["--backbone", backbone, "--offline", "--device", "cpu", "--set", "document_tokens=48", "--set", "max_tokens=24"]
    word = "eucalyptus"  # of one text, in no title, docid, query or vocabulary
    for store in ("title", "none"):
        outcome = run("create", store, "d0", "--store", store, "--effort", "quick", *options)
        assert outcome.returncode == 0, outcome.stderr
        (hit,) = json.loads(run("search", store, f"{word}?", "-k", "1", "--explain", "--json", "--device", "cpu").stdout)["hits"]
        assert hit["docid"] == "music-didgeridoo" and hit["snippet"] == "" and [name for name, _ in hit["why"]["words"]] == [word]
        stored = b"".join(path.read_bytes() for path in (tmp_path / store).rglob("*") if path.is_file())
        assert (word.encode() in stored.lower()) == (store == "title")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["search", "index", "tea", "--min-confidence", "1.5"], 2, "Invalid value for '--min-confidence'"),
        (["create", "new", "d1", "--effort", "heroic"], 2, "effort='heroic' must be one of quick, normal, full"),
        (["search", "nowhere", "tea"], 1, "nowhere: no index is here; make one with `promptdsi create nowhere CORPUS`"),
        (["search", "indx", "tea"], 1, "indx: no index is here; did you mean 'index'?"),
        (["search", "d0", "tea"], 1, "error: d0: no index is here"),
        (["search", "d0/corpus.jsonl", "tea"], 1, "no index is here"),
        (["search", "index", "tea", "-k", "0"], 2, "k=0: k must be at least 1"),
        (["search", "index", ""], 2, "a query is empty"),
        (["search", "index", "\udcff\udcfe"], 2, "is not UTF-8"),
        (["create", "new", "d1", "--seed", "-1"], 2, "Invalid value for '--seed'"),
        (["add", "index", "d1", "--seed", "99999999999999999999999"], 2, "Invalid value for '--seed'"),
        (["search", "index", "tea", "--at", "7"], 2, "index has generations 1 to 1, not 7"),
        (["add", "index", "missing"], 1, "missing"),
        (["add", "index", "d1", "--max-drift", "x"], 2, "Invalid value for '--max-drift'"),
        (["add", "index", "d1", "--on-error", "weep"], 2, "'weep' is not one of 'stop', 'skip'"),
        (["add", "nowhere", "d1"], 1, "nowhere: no index is here"),
        (["create", "index", "d1"], 1, "index: is an index already; add to it with `promptdsi add`, or create another elsewhere"),
        (["create", "new", "d1", "--set", "fit_epochs"], 2, "--set fit_epochs: expected KEY=VALUE"),
        (["create", "new", "d1", "--method", "bm25"], 2, "an index cannot hold bm25"),
        (["create", "new", "d1", "--set", "fit_epochs=many"], 2, "fit.epochs='many': expected a whole number, such as 20"),
        (["create", "d0", "d1"], 1, "d0: exists and is no index; give a new or empty folder"),
        (["delete", "index", "nobody"], 1, "index: holds no document 'nobody'"),
        (["undelete", "index", "nobody"], 1, "index: holds no document 'nobody'"),
        (["purge", "index"], 0, "index: no deleted document is left to purge"),
        (["delete", "index", "d0/astronomy-mars-retrograde"], 1, "did you mean 'astronomy-mars-retrograde'?"),
        (["create", "new", "d1", "--set", "fit_epoch=1"], 2, "promptdsi has no parameter 'fit_epoch'; did you mean 'fit.epochs'?"),
        (["eval", "index", "d0", "--run", "no/where/x.run", "--device", "cpu"], 1, "no/where: is no folder to write a run file to"),
        (["rollback", "index"], 2, "index is at generation 1; there is nothing to go back to"),
        (["get", "index", "nobody"], 1, "index: holds no document 'nobody' in generation 1"),
        (["eval", "index", "d0", "--split", "all"], 2, "no split 'all'; there are train, dev, test"),
        (["eval", "index", "d2"], 1, "the corpus d2 has no test query whose document is in the index"),
        (["export", "index", "--to", "csv", "-o", "out"], 2, "no export 'csv'; there are faiss, beir, hf"),
        (["verify", "nowhere"], 1, "nowhere: no index is here"),
        (["log", "nowhere"], 1, "nowhere: no index is here"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], code: int, says: str, index_folder: Path, run: Any) -> None:
    outcome = run(*words)
    assert outcome.returncode == code and says in " ".join(outcome.stderr.split()), outcome.stderr
    assert "Traceback" not in outcome.stderr and len(Index.open(index_folder, device="cpu")) == 21
    assert not (index_folder.parent / "new").exists() and not (index_folder.parent / "nowhere").exists()


def test_bad_records_stop_or_are_skipped(index_folder: Path, run: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"_id": "x1", "text": "tea and bread"}\n{"_id": "x2"}\n{"_id": "x3", "text": "boats"}\n')
    stopped = run("add", "index", "bad.jsonl", "--device", "cpu")
    assert stopped.returncode == 1 and "bad.jsonl:2" in stopped.stderr and len(Index.open(index_folder, device="cpu")) == 21
    skipped = run("add", "index", "bad.jsonl", "--on-error", "skip", "--device", "cpu")
    assert (
        skipped.returncode == 0
        and "1 could not be read and was skipped:" in skipped.stderr
        and len(Index.open(index_folder, device="cpu")) == 23
    )


def test_a_folder_of_text_files(run: Any, tmp_path: Path, backbone: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/tea.txt").write_text("Tea is brewed with water.")
    (tmp_path / "notes/locks.md").write_text("# Locks\n\nA lock lifts boats.")
    outcome = run(
        "create", "index", "notes", "--backbone", backbone, "--set", "document_tokens=48", "--set", "max_tokens=24", "--device", "cpu"
    )
    assert outcome.returncode == 0 and "learning 2 documents from" in outcome.stderr, outcome.stderr
    assert "tea.txt" in run("search", "index", "water", "--device", "cpu").stdout


def test_a_small_index_shows_scores_and_says_why(run: Any, tmp_path: Path, backbone: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/tea.txt").write_text("Tea is brewed with water.")
    options = ["--backbone", backbone, "--effort", "quick", "--set", "document_tokens=48", "--set", "max_tokens=24", "--device", "cpu"]
    assert run("create", "index", "notes", *options).returncode == 0
    shown = run("search", "index", "tea", "water", "--device", "cpu").stderr
    assert "searched for 2 queries; put words in quotes to search for them together\n" in shown
    assert shown.count("scores are shown, not confidences: the index had too few passages to estimate them") == 1
    assert "put words in quotes" not in run("search", "index", "tea", "hot water", "--device", "cpu").stderr
    again = run("create", "index", "notes", *options)
    assert again.stderr == "error: index: is an index already; add to it with `promptdsi add`, or create another elsewhere\n"


def test_the_help_lists_everyday_commands_first(run: Any) -> None:
    lines = run("--help").stdout.splitlines()
    titles = [lines.index(f"{title}:") for title in ("Every day", "Looking after an index", "Data and research")]
    assert titles == sorted(titles) and lines[titles[0] + 1].split(maxsplit=1) == ["create", "Make an index of documents."]
    assert any(line.split()[:1] == ["bench"] for line in lines[titles[2] :])


def test_documents_too_strange_for_a_span_are_learned_from_their_words(run: Any, tmp_path: Path, backbone: str) -> None:
    texts = {"m1": "+49 30 901820", "m2": "How are you?", "m3": "\U0001f600 \U0001f600", "m4": "A lock lifts boats."}
    lines = [json.dumps({"_id": docid, "text": text}) for docid, text in texts.items()]
    (tmp_path / "short.jsonl").write_text("\n".join(lines[:2]) + "\n")
    (tmp_path / "more.jsonl").write_text("\n".join(lines[2:]) + "\n")
    options = ["--set", "document_tokens=48", "--set", "max_tokens=24", "--device", "cpu"]
    outcome = run("create", "index", "short.jsonl", "--backbone", backbone, *options)
    assert outcome.returncode == 0, outcome.stderr
    assert run("add", "index", "more.jsonl", "--fast", "--device", "cpu").returncode == 0
    tuned = run("tune", "index", "--device", "cpu")
    assert tuned.returncode == 0 and len(Index.open(tmp_path / "index", device="cpu")) == 4, tuned.stderr


def test_a_document_cannot_talk_to_the_terminal(index_folder: Path, run: Any, tmp_path: Path) -> None:
    nasty = "Lemurs \x1b[31mred\x1b[0m \x1b]0;mine\x07 and \u202eback\u202c, \x9b2J"
    (tmp_path / "nasty.jsonl").write_text(json.dumps({"_id": "n1", "title": nasty, "text": nasty}) + "\n")
    added = run("add", "index", "nasty.jsonl", "--device", "cpu")
    assert added.returncode == 0, added.stderr
    shown = run("search", "index", "lemurs", "-k", "30", "--device", "cpu")
    got = run("get", "index", "n1")
    for outcome in (added, shown, got, run("get", "index", "no\x1b[2J")):
        assert not any(sign in outcome.stdout + outcome.stderr for sign in "\x1b\x07\x9b\u202e\u202c")
    assert "�[31mred" in shown.stdout and "�[31mred" in got.stdout
    output = run("get", "index", "n1", "--json").stdout
    assert json.loads(output)["text"] == nasty  # data stay what they are
    assert not any(sign in output for sign in "\x1b\x07\x9b\u202e\u202c")


def test_a_terminal_without_unicode_gets_question_marks_and_json_stays_whole(index_folder: Path) -> None:
    import os

    words, plain = [sys.executable, "-m", "promptdsi"], os.environ | {"PYTHONIOENCODING": "ascii"}
    helped = subprocess.run([*words, "search", "--help"], capture_output=True, env=plain, check=False)
    assert helped.returncode == 0 and b"Traceback" not in helped.stderr
    command = [*words, "search", str(index_folder), "th\u00e9 \u2026", "--json", "--device", "cpu"]
    outcome = subprocess.run(command, capture_output=True, env=plain, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["query"] == "th\u00e9 \u2026"
    command = [*words, "search", str(index_folder), "th\u00e9 \u2026", "tea", "--device", "cpu"]
    shown = subprocess.run(command, capture_output=True, env=plain, check=False)
    assert shown.returncode == 0 and shown.stdout.startswith(b"th? ?\n"), shown.stderr


def test_more_threads_than_cores_are_not_begun(index_folder: Path) -> None:
    from promptdsi.model.path import cores

    index = Index.open(index_folder, device="cpu", threads=9999)
    assert index.opened.threads == cores() and index.search("tea")


def test_search_from_a_real_process_is_the_same(index_folder: Path) -> None:
    words = [sys.executable, "-m", "promptdsi", "search", str(index_folder), "tea", "bread", "--json", "--device", "cpu"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    index = Index.open(index_folder, device="cpu")
    for line in ended.stdout.splitlines():
        result = json.loads(line)
        assert [hit["docid"] for hit in result["hits"]] == [hit.docid for hit in index.search(result["query"])]
