"""Values and changes that a stranger might try: junk for JSON, parts of tokenizers, SQL for a database of documents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

JUNK: list[Any] = [None, True, False, 0, 1, -1, 2, 3, 7, 63, 64, 65, 255, 1000, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(10**18)]
JUNK += [
    0.0,
    0.5,
    -1.5,
    1e-300,
    1e308,
    -1e308,
    "",
    "x",
    "0",
    "none",
    "topic",
    "coda",
    "../../etc/passwd",
    "a" * 5000,
    "\ud800",
    "\0",
    "é▁",
    "\x1b[31mred\x9b0m\u202e",
]
JUNK += [[], {}, [[]], [None], [0], [1, 2, 3], [-1], ["x"], {"a": 1}, {"": {}}, {"type": "Sequence"}, [[[[[[]]]]]], [2**40] * 8]
BYTES = {"add_prefix_space": True, "trim_offsets": True, "use_regex": False}
SPACES = {"replacement": "▁", "prepend_scheme": "always", "split": True}
SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
PARTS: dict[str, dict[str, Any]] = {  # of tokenizers, each a kind that some tokenizer has
    "normalizer": {
        "BertNormalizer": {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "Replace": {"pattern": {"String": "a"}, "content": "aa"},
        "Prepend": {"prepend": "a" * 100},
        "Precompiled": {"precompiled_charsmap": "/P///2FiY2Q="},
        "Precompiled ": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAB4eHgA"},
        "ByteLevel": {},
        "NFKD": {},
        "Strip": {"strip_left": True, "strip_right": True},
    },
    "pre_tokenizer": {
        "ByteLevel": BYTES,
        "Metaspace": SPACES,
        "Split": {"pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        "Punctuation": {"behavior": "Isolated"},
        "UnicodeScripts": {},
        "WhitespaceSplit": {},
    },
    "post_processor": {
        "ByteLevel": BYTES,
        "BertProcessing": {"sep": ["a", 1], "cls": ["b", 2]},
        "TemplateProcessing": {"single": [{"Sequence": {"id": "A", "type_id": 0}}] * 16, "pair": [], "special_tokens": {}},
    },
}
SCRIPTS = [
    "ALTER TABLE documents RENAME TO old; CREATE VIEW documents AS SELECT place, docid, title, text, metadata FROM old",
    "ALTER TABLE documents RENAME TO old; CREATE VIEW documents AS WITH RECURSIVE n(place) AS (SELECT 0 UNION ALL SELECT place + 1 FROM n) "
    "SELECT place, 'a' AS docid, '' AS title, hex(zeroblob(100000)) AS text, NULL AS metadata FROM n",
    "ALTER TABLE documents ADD COLUMN more TEXT GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL",
    "CREATE TABLE more (a); INSERT INTO more VALUES (1)",
    "CREATE INDEX by_title ON documents (title)",
    "CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM documents; END",
    "DROP TABLE documents",
    "DELETE FROM documents",
    "UPDATE documents SET place = place + 1000000",
    "UPDATE documents SET place = -place - 1",
    "UPDATE documents SET text = zeroblob(10)",
    "UPDATE documents SET docid = x'ff', title = x'fe'",
    "UPDATE documents SET text = CAST(x'fffefd' AS TEXT)",
    "UPDATE documents SET metadata = '[1, 2]'",
    "UPDATE documents SET metadata = '{\"a\": 1e999, \"b\": ' || substr(hex(zeroblob(50000)), 1, 60000) || '}'",
    "UPDATE documents SET metadata = replace(hex(zeroblob(20000)), '0', '[')",
    'UPDATE documents SET metadata = \'{"pages": [0, "x", null], "a": {"b": [1, {"c": 2}]}}\'',
    "UPDATE documents SET text = replace(hex(zeroblob(2500)), '0', '# x\n')",
    "UPDATE documents SET docid = 'same'",
    'UPDATE documents SET metadata = \'{"a\\ud800": "\\udfff", "b": NaN, "arrives": Infinity}\'',
    'UPDATE documents SET metadata = \'{"arrives": "d0", "\\u001b[31m": ["\\u009b0m", "\\u202e"]}\', title = char(27, 155, 8238)',
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = replace(sql, 'TEXT', 'BLOB')",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = 1",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET type = 'view'",
    "PRAGMA user_version = -1",
    "INSERT INTO documents SELECT place + 100, docid, title, text, metadata FROM documents",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something can be changed; of long lists the first and the last few."""
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    if len(inner) > 12:
        inner = inner[:6] + inner[-6:]
    return [path, *(place for key, entry in inner for place in places(entry, (*path, key)))]


def mutate(rng: random.Random, value: Any) -> Any:
    """A JSON value with something in it replaced, removed, added, moved, or a number changed a little."""
    path = rng.choice(places(value)[1:] or [()])
    if not path:
        return rng.choice(JUNK)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    key, old = path[-1], holder[path[-1]]
    kind = rng.randrange(8)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
        if rng.random() < 0.5:
            holder[rng.choice(["more", "", "\0", "x" * 300, key.upper()])] = old
    elif kind == 1 and isinstance(old, int | float):
        holder[key] = rng.choice([old + 1, old - 1, -old, old * 1000, float(old), str(old), bool(old)])
    elif kind == 2:
        source = rng.choice(places(value)[1:])
        other = value
        for inner in source:
            other = other[inner]
        holder[key] = json.loads(json.dumps(other))
    elif kind == 3 and isinstance(holder, list):
        holder[key:key] = [json.loads(json.dumps(old))] * rng.choice([1, 1, 3, 1000])
    elif kind == 4 and isinstance(old, str):
        holder[key] = rng.choice([old[:-1], old + "0", old[::-1], old.upper(), old * 50, [old], {old: old}])
    else:
        holder[key] = json.loads(json.dumps(rng.choice(JUNK)))
    return value


def several(rng: random.Random) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            value = mutate(rng, value)
        return value

    return change
