"""An index from somebody else (R34): whatever its files hold, with right checksums, each command gives an answer or one sentence in bounds.

The commands run in a child process (`tests/onlooker.py`), where each may take 5 s of the processor and 1 GiB. For commands that write see
`test_strangers_writers.py`; `make soak` does the same with random forgeries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forged
import pytest
import small
from onlooker import Look, Onlooker

from promptdsi import Corpus, DataError, Index, PromptDSIError
from promptdsi.checks import check_depth, parse_json
from promptdsi.index import strangers
from promptdsi.model.tokenizer_checks import check_tokenizer


@pytest.fixture(scope="module")
def onlooker() -> Iterator[Onlooker]:
    with Onlooker() as running:
        yield running


@pytest.fixture
def forgery(original: Path, tmp_path: Path) -> Path:
    return forged.copied(original, tmp_path / "index")


def look(onlooker: Onlooker, folder: Path, *more: list[str]) -> list[Look]:
    """Every reading command on an index; each must end well."""
    at = str(folder)
    search = ["search", at, "water", "how does it work", "--explain", "--json", "--device", "cpu", "--threads", "1"]
    looks = onlooker.look(search, ["info", at], ["log", at], ["verify", at, "--quiet"], *more)
    for look in looks:
        assert look.outcome in ("answer", "sentence"), f"{look.command}: {look.outcome}: {look.says}"
    return looks


WRONG_FIELDS: list[tuple[str, Any, str]] = [
    ("params", 5, "params is 5, expected an object"),
    ("params", {"encoding": 3}, "params.encoding is 3"),
    ("config", [], "config is a list, expected an object"),
    ("prompts", [1], "prompts is a list"),
    ("prompts", {"keys.0": 7}, "prompts.keys.0 is 7"),
    ("sizes", [], "sizes is a list"),
    ("sizes", {}, "sizes has none of"),
    ("tombstones", 5, "tombstones is 5"),
    ("tombstones", ["a"], "tombstones is a list"),
    ("tombstones", [2, 1], "tombstones do not ascend"),
    ("event", 3, "event is 3"),
    ("event", {"drift": 1}, "event.drift is 1"),
    ("event", {"added": "many"}, "event.added is 'many'"),
    ("event", {"to": 99}, "follows another"),
    ("erase", [], "erase is a list"),
    ("encoder", 5, "encoder is 5"),
    ("tokenizer", None, "tokenizer is None"),
    ("number", "2", "number is '2'"),
    ("number", 1, "parent is 1"),
    ("format", "x", "format is 'x'"),
    ("format", 10**40, "in format 1000000"),
    ("corpora", {}, "corpora is an object"),
    ("corpora", [None], "corpora.0 is None"),
    ("metadata", None, "metadata is None"),
    ("metadata", {"corpora": 10**9}, "metadata.corpora is 1000000000"),
    ("time", {}, "time is an object"),
    ("store", 1, "store is 1"),
    ("retired", "x", "retired is 'x'"),
    ("parent", 2, "parent is 2"),
]


@pytest.mark.parametrize(("field", "value", "says"), WRONG_FIELDS, ids=lambda value: json.dumps(value)[:30])
def test_a_manifest_of_wrong_types_is_one_sentence(
    onlooker: Onlooker, forgery: Path, corpora: list[Corpus], field: str, value: Any, says: str
) -> None:
    forged.manifest(forgery, lambda content: content.update({field: value}))
    corpora[2].write(forgery.parent / "d2")
    looks = look(onlooker, forgery, ["add", str(forgery), str(forgery.parent / "d2"), "--device", "cpu"])
    assert {outcome.outcome for outcome in looks} == {"sentence"}
    with pytest.raises(DataError, match=says):
        Index.open(forgery)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fit.batch_size", 10**9),
        ("add.epochs", 10**12),
        ("pseudo_queries", 10**10),
        ("encoding.document_windows", 10**9),
        ("encoding.max_tokens", 10**6),
        ("prompt_options.prompt_length", 10**9),
        ("seed", -1),
        ("encoding.dropout", "high"),
        ("selection", "all"),
        ("retired.stand_ins", [[0] * 5000]),
    ],
)
def test_parameters_out_of_range_allocate_nothing(
    onlooker: Onlooker, forgery: Path, corpora: list[Corpus], option: str, value: Any
) -> None:
    outer, _, inner = option.partition(".")

    def change(content: Any) -> None:
        content["params"] |= {outer: content["params"].get(outer, {}) | {inner: value} if inner else value}

    forged.manifest(forgery, change)
    if option.startswith("prompt_options"):  # read by the strategy alone, which nothing needs before a corpus is added
        with pytest.raises(PromptDSIError, match="prompt_length=1000000000 is more than 4096"):
            Index.open(forgery, device="cpu").add(corpora[2], name="more")
        return
    corpora[2].write(forgery.parent / "d2")
    looks = look(onlooker, forgery, ["add", str(forgery), str(forgery.parent / "d2"), "--device", "cpu"])
    assert {outcome.outcome for outcome in looks} == {"sentence"}


def sparse(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(b"{")
    os.truncate(path, 5 << 30)


def sparse_blob(part: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = forged.content(forged.current(folder))
        name = content.get(part) or content["corpora"][0][part]
        sparse(folder / "blobs" / name)
        forged.rename(folder, name, name, 5 << 30)

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = forged.current(folder) if name == "manifest" else folder / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return change


def documents(script: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for entry in corpora_of(folder):
            forged.database(folder, entry["documents"], script)

    return change


def corpora_of(folder: Path) -> list[Any]:
    return list(forged.content(forged.current(folder))["corpora"])


def tokenizer(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        forged.json_blob(folder, forged.content(forged.current(folder))["tokenizer"], lambda value: value.update(changes))

    return change


def rows_header(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: forged.header(folder, corpora_of(folder)[0]["rows"], change) and None


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: forged.manifest(folder, lambda content: content["config"].update(changes))


def ids(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: forged.json_blob(folder, corpora_of(folder)[0]["ids"], change) and None


def far_generation(folder: Path) -> None:
    """CURRENT names a generation of which no earlier one exists."""
    path = forged.current(folder)
    content = forged.content(path)
    content |= {"number": 9_999_999, "parent": 9_999_998}
    far = folder / "generations" / "9999999.json"
    forged.replace(far, forged.seal(json.dumps(content).encode()))
    forged.point(folder, far)


def unaligned(folder: Path) -> None:
    """One more space behind the header moves every tensor by a byte."""
    name = corpora_of(folder)[0]["rows"]
    raw = (folder / "blobs" / name).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    forged.blob(folder, name, (size + 1).to_bytes(8, "little") + raw[8 : 8 + size] + b" " + raw[8 + size :])


VIEW = "ALTER TABLE documents RENAME TO old; CREATE VIEW documents AS "
COUNTING = "WITH RECURSIVE n(place) AS (SELECT 0 UNION ALL SELECT place + 1 FROM n) SELECT place, 'a' AS docid, '' AS title, "
DOUBLING = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 8}
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "ten million layers": (config(layers=10**7), "config.layers is 10000000"),
    "a thousand layers": (config(layers=1000), "a larger encoder than its blob"),
    "heads that divide nothing": (config(heads=7), "heads is 7, which does not divide"),
    "an endless view": (documents(VIEW + COUNTING + "'x' AS text, NULL AS metadata FROM n"), "it has other tables, views"),
    "a view that allocates": (documents(VIEW + COUNTING + "hex(zeroblob(100000000)) AS text, NULL AS metadata FROM n"), "other tables"),
    "a generated column": (
        documents("ALTER TABLE documents ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(zeroblob(400000000))) VIRTUAL"),
        "other tables",
    ),
    "a trigger": (documents("CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM documents; END"), "other tables"),
    "documents that are bytes": (documents("UPDATE documents SET text = zeroblob(10)"), "a document that is no text"),
    "documents elsewhere": (documents("UPDATE documents SET place = place + 1000"), ""),
    "metadata nested deeply": (documents("UPDATE documents SET metadata = replace(hex(zeroblob(20000)), '0', '[')"), "metadata: "),
    "a number of ten million digits": (
        rows_header(lambda header: b'{"rows":{"dtype":"F32","shape":[' + b"9" * 10**7 + b'],"data_offsets":[0,4]}}'),
        "a number has too many digits",
    ),
    "a shape of a million numbers": (
        rows_header(lambda header: {"rows": header["rows"] | {"shape": [2] * 10**6}}),
        "of a shape that none has",
    ),
    "tensors that are not aligned": (unaligned, "does not fit"),
    "tensors on top of each other": (
        rows_header(lambda header: header | {f"more {number}": header["rows"] for number in range(1000)}),
        "its tensors overlap",
    ),
    "replacements that double": (tokenizer(normalizer=DOUBLING), "normalizer.normalizers.0.pattern is an object"),
    "a pattern that backtracks": (
        tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}),
        "pre_tokenizer is of the kind 'Split'",
    ),
    "a template of unknown tokens": (
        tokenizer(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[NONE]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        ),
        "has no special token '[NONE]'",
    ),
    "tokens beyond the vocabulary": (tokenizer(added_tokens=[{"id": 10**6, "content": "water"}]), "added_tokens.0.id is 1000000"),
    "a huge CURRENT": (lambda folder: sparse(folder / "CURRENT"), "is mostly a hole"),
    "a long CURRENT": (lambda folder: forged.replace(folder / "CURRENT", b"0" * 10**6), "at most 100 are read"),
    "huge ids": (sparse_blob("ids"), "is mostly a hole"),
    "a huge tokenizer": (sparse_blob("tokenizer"), "is mostly a hole"),
    "a huge encoder": (sparse_blob("encoder"), "is mostly a hole"),
    "a pipe as lock": (pipe("lock"), ""),
    "a pipe as CURRENT": (pipe("CURRENT"), "is no regular file"),
    "a pipe as manifest": (pipe("manifest"), "do not belong together"),
    "a device as CURRENT": (lambda folder: [(folder / "CURRENT").unlink(), (folder / "CURRENT").symlink_to("/dev/zero")][0], "links"),
    "ids that are numbers": (ids(lambda value: value.update(docids=list(range(len(value["docids"]))))), "its docids are no text"),
    "passages that are text": (ids(lambda value: value.update(boundaries={"0": ["a", "b"]})), "are no numbers"),
    "ids of lists in lists": (ids(lambda value: [[]] * 10**5), "is no part of an index"),
    "ids nested deeply": (
        lambda folder: forged.blob(folder, corpora_of(folder)[0]["ids"], b"[" * 10**6 + b"]" * 10**6) and None,
        "nested too deeply",
    ),
    "a manifest nested deeply": (lambda folder: forged.raw_manifest(folder, b"[" * 10**5 + b"]" * 10**5), "not readable as JSON"),
    "a manifest of a hundred nested lists": (
        lambda folder: forged.manifest(folder, lambda content: content.update(event=json.loads("[" * 100 + "]" * 100))),
        "not readable as JSON",
    ),
    "generations that do not exist": (far_generation, ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_answer_or_one_sentence(onlooker: Onlooker, forgery: Path, name: str) -> None:
    change, says = HOSTILE[name]
    change(forgery)
    looks = look(onlooker, forgery)
    if says:
        assert looks[0].outcome == "sentence" and says in looks[0].says, looks[0]
        assert looks[-1].outcome == "sentence", "verify says so too"


def test_a_pipe_as_lock_is_refused_by_writers(forgery: Path, corpora: list[Corpus]) -> None:
    pipe("lock")(forgery)
    with pytest.raises(DataError, match=r"lock: is no regular file; an index holds its own files only"):
        Index.open(forgery).delete(corpora[0].documents[0].docid)


def test_json_is_bounded_before_and_while_it_is_parsed() -> None:
    for raw, says in (
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "too many digits"),
        (b"0." + b"9" * 5000, "too many digits"),
        (b"[NaN]", "NaN is no number"),
        (b"[" + b"[]," * 1000 + b"[]]", "could take"),
    ):
        with pytest.raises(ValueError, match=says):
            parse_json(raw, most=100_000 if says == "could take" else None)
    assert parse_json('{"a": [1, 2.5, "x"]}') == {"a": [1, 2.5, "x"]}
    with pytest.raises(ValueError, match="nested too deeply"):
        check_depth(json.loads("[" * 40 + "]" * 40))


def test_tokenizers_of_the_backbones_are_accepted() -> None:
    from promptdsi.model.backbone import backbone_folder

    text = (backbone_folder("minilm") / "tokenizer.json").read_text("utf-8")
    check_tokenizer(text, 30522)
    with pytest.raises(ValueError, match="expected a whole number from 0 to 29999"):
        check_tokenizer(text, 30000)
    roberta = {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": {"<s>": 0, "a": 1, "</s>": 2}, "merges": ["a a", ["a", "b"]]},
    }
    xlm = {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA="},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.5]], "byte_fallback": False},
    }
    for value in (roberta, xlm):
        check_tokenizer(json.dumps(value), 10)


def test_a_path_of_thousands_of_characters_can_be_searched_and_written(original: Path, tmp_path: Path, corpora: list[Corpus]) -> None:
    """The documents of such an index could not be opened, though `delete` committed."""
    deep = tmp_path
    while (left := 3900 - len(f"{deep}/index")) > 1:
        deep /= "a" * min(180, left - 1 if left - 1 < 200 else 180)
    deep.mkdir(parents=True)
    place = small.copied(original, deep / "index")
    assert len(str(place)) in (3899, 3900)
    index = Index.open(place, device="cpu")
    assert small.signature(index) == small.signature(original)
    index.add(corpora[2], name="more", fast=True)
    index.delete(corpora[0].documents[0].docid)
    assert index.get(corpora[2].documents[0].docid) == corpora[2].documents[0] and index.verify().problems == []
    assert corpora[0].documents[0].docid not in {docid for docid, *_ in small.signature(index)}


def test_verify_untrusted_says_what_it_checked(place: Path, run: Any) -> None:
    outcome = run("verify", place, "--untrusted")
    assert outcome.returncode == 0 and outcome.stderr.count("checked: ") == 3 and "no problems" in outcome.stderr
    forged.json_blob(place, forged.content(forged.current(place))["tokenizer"], lambda value: value.update(normalizer=DOUBLING))
    outcome = run("verify", place, "--untrusted")
    assert outcome.returncode == 1 and "normalizer.normalizers.0.pattern" in outcome.stderr and "Traceback" not in outcome.stderr


def test_an_index_of_another_user_is_looked_at_by_a_child_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.open(place, trust=False, device="cpu")
    assert index.search("water") and len(index.store.checks) == 3
    for limit, program, says in (
        (0.01, strangers.PROGRAM, "takes more than 0 s to look at: do not use it"),
        (60.0, "import os; os.abort()", "ends the process that looks at it \\(signal 6\\): do not use it"),
        (60.0, "import os; os._exit(3)", "ends the process that looks at it \\(exit code 3\\)"),
    ):
        monkeypatch.setattr(strangers, "SECONDS", limit)
        monkeypatch.setattr(strangers, "PROGRAM", program)
        with pytest.raises(DataError, match=says):
            Index.open(place, trust=False)
    assert Index.open(place).store.checks == []  # our own: no child
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 4711)
    if place.stat().st_uid == 0:  # as root's, it would be trusted by everybody
        os.chown(place, 4710, -1)
    with pytest.raises(DataError, match="ends the process that looks at it"):
        Index.open(place)
