"""Growth: tags, and generations that are dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forged
import pytest
import small

from promptdsi import Corpus, DataError, Index, UsageError
from promptdsi.index.manifest import PrunedGeneration


def test_old_generations_are_dropped_and_the_log_still_shows_them(place: Path, run: Any) -> None:
    index, before = Index.open(place, device="cpu"), small.signatures(place)
    index.tag("release", 3)
    size = sum(path.stat().st_size for path in (place / "blobs").iterdir())
    planned = index.prune(keep=2, dry_run=True)
    report = index.prune(keep=2)
    # 8 and 9 are the newest; 9 went back to 7, so a rollback leads to 6; 3 has a tag.
    assert report.left == [3, 6, 8, 9, 10] and report.pruned == [1, 2, 4, 5, 7] == planned.pruned and report.bytes == planned.bytes
    assert sum(path.stat().st_size for path in (place / "blobs").iterdir()) == size - report.bytes
    assert small.signatures(place) == {number: before.get(number, before[9]) for number in report.left}
    log = index.log()
    kinds = ["create", "add", "add", "add", "add", "add", "delete", "teach", "rollback", "prune"]
    assert [state.kind for state in log] == kinds and all(state.time and state.documents for state in log)
    assert [state.number for state in log if isinstance(state, PrunedGeneration)] == report.pruned
    assert index.verify().problems == [] and index.rollback().event == {"to": 6}
    with pytest.raises(UsageError, match=r"generation 5 \(made by `add` on 20.*\) was pruned; `promptdsi log` lists those that are left"):
        Index.open(place, at=5, device="cpu")
    with pytest.raises(UsageError, match=r"generation 7 .* was pruned"):
        index.rollback(7)
    outcome = run("search", place, "water", "--at", "5")
    assert outcome.returncode == 2 and "was pruned" in outcome.stderr and len(outcome.stderr.splitlines()) == 1
    assert run("search", place, "water", "--at", "release", "--json").stdout == run("search", place, "water", "--at", "3", "--json").stdout
    rows = [json.loads(line) for line in run("log", place, "--json").stdout.splitlines()]
    assert [row["generation"] for row in rows if row["pruned"]] == report.pruned and rows[2]["tags"] == ["release"]
    assert rows[9]["what"] == "5 generations dropped" and "release" in run("log", place).stdout


def test_age_and_number_together_keep_what_either_keeps(place: Path) -> None:
    index = Index.open(place, device="cpu")
    assert index.prune(older_than=1, dry_run=True).pruned == []
    assert index.prune(older_than=0, dry_run=True).pruned == [1, 2, 3, 4, 5, 7, 8]
    assert index.prune(keep=4, older_than=0, dry_run=True).pruned == [1, 2, 3, 4, 5]
    assert index.prune(keep=100).generation == 9  # nothing to do makes no generation
    for options, says in (({}, "say what to prune"), ({"keep": 0}, "at least 1"), ({"older_than": -1.0}, "number of days")):
        with pytest.raises(UsageError, match=says):
            index.prune(**options)  # type: ignore[arg-type]


def test_tags(place: Path, run: Any, corpora: list[Corpus]) -> None:
    assert json.loads(run("tag", place, "start", "1", "--json").stdout) == {"tag": "start", "generation": 1, "deleted": False}
    index = Index.open(place, device="cpu")
    assert index.tag("now") == 9 and index.tags() == {"start": 1, "now": 9}
    assert Index.open(place, at="start", device="cpu").generation == 1
    for name in ("", "3", "a b", "-x", "x" * 101, "a/b"):
        with pytest.raises(UsageError, match="a tag is a letter"):
            index.tag(name)
    with pytest.raises(UsageError, match="the tag 'start' names generation 1; remove it first"):
        index.tag("start", 2)
    with pytest.raises(UsageError, match="has no generation or tag 'strat'; did you mean 'start'"):
        Index.open(place, at="strat")
    assert run("tag", place, "nothing", "--delete").returncode == 2 and run("tag", place, "now", "99").returncode == 2
    index.purge(corpora[0].documents[1].docid)  # a tag still names the generation, without what was erased
    assert corpora[0].documents[1].docid not in str(small.signature(Index.open(place, at="start", device="cpu")))
    assert index.rollback("start").event == {"to": 1}
    assert run("tag", place, "start", "--delete").returncode == 0 and index.tags() == {"now": 9}
    assert index.verify().problems == []
    forged.replace(place / "tags.json", (place / "tags.json").read_bytes().replace(b'"now"', b'"new"'))
    with pytest.raises(DataError, match=r"tags.json: is damaged"):
        index.tags()
    forged.replace(place / "tags.json", forged.seal(b'{"format":4,"written_by":"","tags":{"later":99}}'))
    assert [problem for problem in index.verify().problems if "the tag later names generation 99, which is not there" in problem]
    forged.replace(place / "tags.json", forged.seal(b'{"format":4,"written_by":"","tags":{"../x":1}}'))
    with pytest.raises(DataError, match="is no list of tags: tags"):
        index.tags()
