"""What the JSON files of an index may hold: types and ranges, checked before anything of them is used.

Every index is read through these checks, whoever wrote it: a checksum shows that a file is as its sender made it, not that it is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from promptdsi.index.manifest import Manifest

NAME = re.compile(r"([0-9a-f]{64})\.(safetensors|sqlite|json)")
POSITION = re.compile(r"0|[1-9][0-9]{0,9}")
TAG = re.compile(r"[^\W\d][\w.-]*")
HASH = 64  # characters of a sha256
MOST_MANIFEST = 64 << 20  # bytes
MOST_MANIFEST_MEMORY = 512 << 20  # bytes that its values may take
MOST_TOKENIZER = 64 << 20  # bytes
MOST_GENERATIONS = 10**7
MOST_DOCUMENTS = MOST_ROWS = 2**31 - 1
MOST_CORPORA = 100_000
MOST_TAG, MOST_TAGS = 100, 10_000  # characters of a tag, and how many there may be
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
    """A list of numbers of rows or documents; checked all at once, since there may be millions."""
    if type(value) is not list or set(map(type, value)) - {int} or (value and not 0 <= min(value) <= max(value) <= MOST_ROWS):
        raise ValueError(f" is {shown(value)}, expected a list of whole numbers from 0 to {MOST_ROWS}")


def ranks(value: Any) -> None:
    """The ranks of an evaluation, from 1."""
    numbers(value)
    if not value or not min(value):
        raise ValueError(" holds no rank, or one below 1")


def blob_sizes(value: Any) -> None:
    """Sizes by blob; checked all at once, since a thousand generations have a thousand times as many."""
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


def values_of(**fields: Check) -> Check:
    """The values of these fields as a list."""

    def check(value: Any) -> None:
        if type(value) is not list or len(value) != len(fields):
            raise ValueError(f" is {shown(value)}, expected a list of {len(fields)}")
        for (name, inner_check), inner in zip(fields.items(), value, strict=True):
            within(name, inner_check, inner)

    return check


ARRIVAL = {"name": text(MOST_NAME), "since": number, "documents": count, "source": optional(text(MOST_PATH))}
arrival = values_of(**ARRIVAL, prefix=text(MOST_PATH), part=integer(0, MOST_CORPORA))  # a small corpus that was merged with others
document_file, document_files = optional(blob_of("sqlite")), items(values_of(name=blob_of("sqlite"), position=count), MOST_CORPORA)
ENTRY = record(
    {"name": text(MOST_NAME), "since": number, "count": count, "rows": tensors, "ids": json_blob},
    {
        "passages": integer(0, MOST_ROWS),
        "words": optional(tensors),
        "documents": lambda value: (document_files if type(value) is list else document_file)(value),
        "probes": optional(json_blob),
        "queries": optional(json_blob),
        "fast": truth,
        "source": optional(text(MOST_PATH)),
        "prefix": text(MOST_PATH),
        "merged": items(arrival, MOST_CORPORA),
        "part": integer(0, MOST_CORPORA),
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
STEP_FIELDS: dict[str, Check] = {  # of every generation, also a pruned one
    "number": number,
    "parent": optional(number),
    "kind": text(50),
    "time": text(100),
    "event": EVENT,
    "format": integer(1, 10**6),
    "written_by": text(100),
}
OWN_FIELDS = STEP_FIELDS | {"erase": table(blob, blob, MOST_BLOBS), "sizes": blob_sizes}
INHERITED: dict[str, Check] = {  # as in the base, unless the file has them
    "method": text(50),
    "params": check_stored_params,
    "config": EncoderConfig.check,
    "encoder": tensors,
    "tokenizer": json_blob,
    "store": choice(STORES),
    "metadata": METADATA,
    "prompts": table(text(100), tensors, MOST_BLOBS),
    "statistics": optional(tensors),
}
PRUNES: dict[str, Check] = {"pruned": items(number, MOST_GENERATIONS)}
WHOLE_FIELDS = {"corpora": items(ENTRY, MOST_CORPORA), "tombstones": numbers, "retired": items(blob, MOST_BLOBS)}
MANIFEST = record(
    OWN_FIELDS | WHOLE_FIELDS | {name: check for name, check in INHERITED.items() if name != "statistics"},
    PRUNES | {"statistics": INHERITED["statistics"]},
)
CORPUS_CHANGES = record(
    {
        "keep": integer(0, MOST_CORPORA),
        "replaced": table(text(10, POSITION, "number"), ENTRY, MOST_CORPORA),
        "added": WHOLE_FIELDS["corpora"],
    }
)
DELETED = table(text(10, POSITION, "number"), record({"added": numbers, "removed": numbers}), MOST_CORPORA)
RETIRED = record({"added": items(blob, MOST_BLOBS), "removed": items(blob, MOST_BLOBS)})
CHANGES = {"base": number, "base_time": text(100), "corpora": CORPUS_CHANGES, "deleted": DELETED, "retired": RETIRED}
DELTA = record(OWN_FIELDS | CHANGES, INHERITED | PRUNES)
PRUNED = record(STEP_FIELDS | {"documents": count, "pruned_by": number})
TAGS = record({"format": integer(1, 10**6), "written_by": text(100), "tags": table(text(MOST_TAG, TAG, "tag"), number, MOST_TAGS)})
SMALL_FILE = re.compile(r"generations/[0-9]{6,8}\.json|records/[0-9]{6,8}-[0-9a-f]{16}\.json|tags\.json")
DIGEST = re.compile(r"[0-9a-f]{64}")
BACKUP = record(
    {
        "format": integer(1, 10**6),
        "written_by": text(100),
        "time": text(100),
        "current": text(100),
        "files": table(text(100, SMALL_FILE, "file of an index"), text(HASH, DIGEST, "sha256"), 2 * MOST_GENERATIONS),
        "blobs": blob_sizes,
        "history": items(text(16), MOST_GENERATIONS),
    }
)
EVAL_RECORD = record(
    {"generation": number, "corpus": text(MOST_NAME), "split": text(50), "ranks": ranks},
    {"format": integer(1, 10**6)},
)
QUERIES = {
    "probes": record({"text": QUERY_TEXT, "docids": items(text(), 10**6)}),
    "queries": record({"text": QUERY_TEXT, "docid": text(), "kind": choice(KINDS)}, {"passage": optional(integer(0, MOST_ROWS))}),
}
LISTS = {part: record({"since": number, "entries": items(query, MOST_DOCUMENTS)}) for part, query in QUERIES.items()}


def check_content(content: Any, bases: Callable[[int], Iterable[int]]) -> None:
    """Raise ValueError unless the file of a generation has the fields of one, in range; `bases` are those it may be stored against."""
    if type(content) is dict and "pruned_by" in content:
        PRUNED(content)
    elif type(content) is dict and "base" in content:
        DELTA(content)
        if content["base"] not in bases(content["number"]):
            raise ValueError(f"base is {content['base']}, which generation {content['number']} is not stored against")
        if any(int(place) >= content["corpora"]["keep"] for place in content["corpora"]["replaced"]):
            raise ValueError("corpora.replaced has more than corpora.keep")
    else:
        MANIFEST(content)
    last, parent = content["number"], content["parent"]
    if parent != (last - 1 or None) or content["event"].get("to", 0) >= last:
        raise ValueError(f"parent is {shown(parent)}, and generation {last} follows another")
    if content["kind"] == "rollback" and "to" not in content["event"]:
        raise ValueError("event has no 'to', and this generation is a rollback")
    if max(content.get("pruned", ()), default=0) >= last or content.get("pruned_by", last + 1) <= last:
        raise ValueError("a later generation is pruned, or an earlier one pruned this")


def check_state(manifest: Manifest) -> None:
    """Raise ValueError unless the parts of a generation fit together, those of its bases included."""
    corpora, sizes, tombstones, config = manifest.corpora, manifest.sizes, manifest.tombstones, manifest.config
    if not corpora or any(entry.since > manifest.number for entry in corpora):
        raise ValueError("corpora are missing, or of a later generation")
    places = [(entry.since, entry.name, entry.part) for entry in corpora]
    if places[0][2] or any(part and before != (since, name, part - 1) for before, (since, name, part) in pairwise(places)):
        raise ValueError("parts of a corpus do not follow each other")
    if any(later <= earlier for earlier, later in pairwise(tombstones)):
        raise ValueError("tombstones do not ascend")
    if tombstones and tombstones[-1] >= sum(entry.count for entry in corpora):
        raise ValueError("tombstones: documents are deleted that do not exist")
    if max(sum(entry.count for entry in corpora), sum(entry.passages for entry in corpora)) > MOST_ROWS:
        raise ValueError("corpora hold more documents than an index can")
    _check_blobs(manifest)
    if 2 * EncoderConfig(**config).weight_count > sizes[manifest.encoder]:
        raise ValueError("config describes a larger encoder than its blob can hold")
    tokens = manifest.params["encoding"]["max_tokens"]
    if tokens + config.get("position_offset", 0) > config["positions"] or 4 * config["heads"] * tokens**2 > MOST_ATTENTION:
        raise ValueError("params.encoding.max_tokens is more than the encoder reads")


def _check_blobs(manifest: Manifest) -> None:
    """Every blob has a size and one purpose; corpora may share some."""
    sizes = manifest.sizes
    roles = {part: [name for entry in manifest.corpora for name in entry.files(part)] for part in PARTS}
    parts = [name for names in roles.values() for name in names]
    others = [manifest.encoder, manifest.tokenizer, *manifest.prompts.values(), *filter(None, [manifest.statistics])]
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
