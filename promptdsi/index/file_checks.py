"""What the JSON files of an index may hold: types and ranges, checked before anything of them is used.

Every index is read through these checks, whoever wrote it: a checksum shows that a file is as its sender made it, not that it is harmless.
"""

from __future__ import annotations

import re
from itertools import chain, pairwise
from typing import Any

from promptdsi.checks import (
    Check,
    choice,
    integer,
    items,
    optional,
    plain,
    real,
    record,
    scalar,
    shown,
    table,
    text,
    truth,
    within,
)
from promptdsi.corpus.corpus import KINDS, MAX_ID_CHARACTERS
from promptdsi.methods.options import check_stored_params
from promptdsi.model.config import EncoderConfig

NAME = re.compile(r"([0-9a-f]{64})\.(safetensors|sqlite|json)")
POSITION = re.compile(r"0|[1-9][0-9]{0,9}")
HASH = 64  # characters of a sha256
MOST_MANIFEST = 64 << 20  # bytes
MOST_MANIFEST_MEMORY = 512 << 20  # bytes that its values may take
MOST_TOKENIZER = 64 << 20  # bytes
MOST_GENERATIONS = 10**7
MOST_DOCUMENTS = MOST_ROWS = 2**31 - 1
MOST_CORPORA = 100_000
MOST_BLOBS = 10**6
MOST_ATTENTION = 4 << 30  # bytes of the attention scores of the longest query
MOST_NAME = 300  # characters of a corpus's name; a new one may have 200
MOST_PATH = 40_000  # characters of a folder
SHARING, SHARED_BYTES = 8, 64 << 20  # corpora may share a blob, but not so that their rows are many times the bytes on disk
PARTS = ("rows", "ids", "words", "documents", "probes", "queries")  # the blobs of a corpus
STORES = ("text", "title", "none")  # what is stored of documents

blob = text(MOST_PATH, NAME, "blob's name")
QUERY_TEXT = text(10**6)
number, count = integer(1, MOST_GENERATIONS), integer(0, MOST_DOCUMENTS)


def numbers(value: Any) -> None:
    """A list of numbers of rows or documents; checked as a integer, since there may be millions."""
    if type(value) is not list or set(map(type, value)) - {int} or (value and not 0 <= min(value) <= max(value) <= MOST_ROWS):
        raise ValueError(f" is {shown(value)}, expected a list of whole numbers from 0 to {MOST_ROWS}")


def ranks(value: Any) -> None:
    """The ranks of an evaluation, from 1."""
    numbers(value)
    if not value or not min(value):
        raise ValueError(" holds no rank, or one below 1")


def blob_sizes(value: Any) -> None:
    """Sizes by blob; checked as a integer, since a thousand generations have a thousand times as many."""
    if type(value) is not dict or len(value) > MOST_BLOBS or set(map(type, value.values())) - {int}:
        raise ValueError(f" is {shown(value)}, expected the sizes of blobs")
    if wrong := [name for name in value if not NAME.fullmatch(name)]:
        blob(wrong[0])
    if value and not 0 <= min(value.values()) <= max(value.values()) <= 2**50:
        raise ValueError(" holds a size that no file has")


def blob_of(kind: str) -> Check:
    """The name of a blob of one kind."""
    pattern = re.compile(rf"[0-9a-f]{{64}}\.{kind}")
    return text(MOST_PATH, pattern, "blob's name")


tensors, json_blob = blob_of("safetensors"), blob_of("json")
ENTRY = record(
    {"name": text(MOST_NAME), "since": number, "count": count, "rows": tensors, "ids": json_blob},
    {
        "passages": integer(0, MOST_ROWS),
        "words": optional(tensors),
        "documents": optional(blob_of("sqlite")),
        "probes": optional(json_blob),
        "queries": optional(json_blob),
        "fast": truth,
        "source": optional(text(MOST_PATH)),
        "prefix": text(MOST_PATH),
    },
)
DRIFT = record({"before": real(), "after": real(), "n": count, "fall": real()}, others=scalar)
EVENT = record(
    {},
    {
        **dict.fromkeys(("added", "updated", "deleted", "documents", "corrections", "queries"), count),
        "corpus": text(MOST_NAME),
        "drift": optional(DRIFT),
        "fast": truth,
        "folders": items(text(MOST_PATH), MOST_CORPORA),
        "seconds": real(0),
        "to": number,
    },
    others=scalar,
)
CALIBRATION = record(dict.fromkeys(("intercept", "score", "margin", "coverage", "bound"), real()), {"information": real()})
METADATA = record(
    {"corpora": integer(0, MOST_CORPORA)},
    {
        "row_norm": real(0),
        "row_length": real(0),
        "d0_rows": integer(0, MOST_ROWS),
        "first_rows": integer(0, MOST_ROWS),
        "topics": optional(record({"words": items(items(text(1000), 1000), MOST_CORPORA)}, {"labels": plain})),
        "word_weight": real(0, 1e6),
        "word_salt": text(64, re.compile("[0-9a-f]*"), "salt"),
        "calibration": CALIBRATION,
    },
    others=plain,
)
MANIFEST_FIELDS: dict[str, Check] = {
    "number": number,
    "parent": optional(number),
    "kind": text(50),
    "time": text(100),
    "method": text(50),
    "params": check_stored_params,
    "config": EncoderConfig.check,
    "encoder": tensors,
    "tokenizer": json_blob,
    "store": choice(STORES),
    "metadata": METADATA,
    "prompts": table(text(100), tensors, MOST_BLOBS),
    "corpora": items(ENTRY, MOST_CORPORA),
    "tombstones": numbers,
    "event": EVENT,
    "erase": table(blob, blob, MOST_BLOBS),
    "sizes": blob_sizes,
    "retired": items(blob, MOST_BLOBS),
    "format": integer(1, 10**6),
    "written_by": text(100),
}
MANIFEST = record(MANIFEST_FIELDS, {"statistics": optional(tensors)})
EVAL_RECORD = record(
    {"generation": number, "corpus": text(MOST_NAME), "split": text(50), "ranks": ranks},
    {"format": integer(1, 10**6)},
)
QUERIES = {
    "probes": record({"text": QUERY_TEXT, "docids": items(text(), 10**6)}),
    "queries": record({"text": QUERY_TEXT, "docid": text(), "kind": choice(KINDS)}, {"passage": optional(integer(0, MOST_ROWS))}),
}
LISTS = {part: record({"since": number, "entries": items(query, MOST_DOCUMENTS)}) for part, query in QUERIES.items()}


def check_manifest(content: Any) -> None:
    """Raise ValueError unless a manifest has the fields of one, in range, and its parts fit together."""
    MANIFEST(content)
    last, parent = content["number"], content["parent"]
    if parent != (last - 1 or None) or content["event"].get("to", 0) >= last:
        raise ValueError(f"parent is {shown(parent)}, and generation {last} follows another")
    if content["kind"] == "rollback" and "to" not in content["event"]:
        raise ValueError("event has no 'to', and this generation is a rollback")
    corpora, sizes, tombstones = content["corpora"], content["sizes"], content["tombstones"]
    if not corpora or any(entry["since"] > last for entry in corpora):
        raise ValueError("corpora are missing, or of a later generation")
    if any(later <= earlier for earlier, later in pairwise(tombstones)):
        raise ValueError("tombstones do not ascend")
    if tombstones and tombstones[-1] >= sum(entry["count"] for entry in corpora):
        raise ValueError("tombstones: documents are deleted that do not exist")
    if max(sum(entry["count"] for entry in corpora), sum(entry.get("passages", 0) for entry in corpora)) > MOST_ROWS:
        raise ValueError("corpora hold more documents than an index can")
    _check_blobs(content)
    config = content["config"]
    if 2 * EncoderConfig(**config).weight_count > sizes[content["encoder"]]:
        raise ValueError("config describes a larger encoder than its blob can hold")
    tokens = content["params"]["encoding"]["max_tokens"]
    if tokens + config.get("position_offset", 0) > config["positions"] or 4 * config["heads"] * tokens**2 > MOST_ATTENTION:
        raise ValueError("params.encoding.max_tokens is more than the encoder reads")


def _check_blobs(content: Any) -> None:
    """Every blob has a size and one purpose; corpora may share some."""
    corpora, sizes = content["corpora"], content["sizes"]
    roles = {part: [entry[part] for entry in corpora if entry.get(part)] for part in PARTS}
    parts = [name for names in roles.values() for name in names]
    others = [content["encoder"], content["tokenizer"], *content["prompts"].values(), *filter(None, [content.get("statistics")])]
    # Probes and queries may both be an empty list.
    groups = [others, roles["probes"] + roles["queries"], *(roles[part] for part in PARTS[:4])]
    if sum(map(len, map(set, groups))) > len({*parts, *others}):
        raise ValueError("a blob is named as two parts of an index")
    if missing := {*parts, *others} - sizes.keys():
        raise ValueError(f"sizes has none of {min(missing)}")
    if sum(sizes[name] for name in parts) > SHARING * sum(sizes[name] for name in set(parts)) + SHARED_BYTES:
        raise ValueError("corpora share their blobs too often")


def check_ids(value: Any) -> None:
    """Raise ValueError unless an `ids` blob has docids, hashes and passages that fit together."""
    if type(value) is not dict or not {"since", "docids", "marks"} <= value.keys():
        raise ValueError("it has no docids")
    within("since", number, value["since"])
    docids, marks, boundaries = value["docids"], value["marks"], value.get("boundaries", {})
    if type(docids) is not list or type(marks) is not str or type(boundaries) is not dict:
        raise ValueError("its docids, marks or boundaries are of another type")
    if {type(docid) for docid in docids} - {str, type(None)} or len(marks) != HASH * len(docids):
        raise ValueError("its docids are no text, or their hashes are not as many")
    if not marks.isascii() or max(map(len, filter(None, docids)), default=0) > MAX_ID_CHARACTERS:
        raise ValueError("its docids are too long, or their hashes no hashes")
    try:
        "".join(filter(None, docids)).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a docid holds a lone surrogate") from None
    if not all(map(POSITION.fullmatch, boundaries)):
        raise ValueError("its passages are of documents that are no numbers")
    lists = boundaries.values()
    flat = chain.from_iterable
    if set(map(type, lists)) - {list} or set(map(type, flat(lists))) - {int}:
        raise ValueError("the boundaries of its passages are no numbers")
    if boundaries and any(not offsets[1:] or sorted(offsets) != offsets for offsets in lists):
        raise ValueError("its passages do not follow each other")
    if boundaries and not 0 <= min(flat(lists)) <= max(flat(lists)) < 2**31:
        raise ValueError("its passages are longer than any text")
