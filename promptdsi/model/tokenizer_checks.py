"""Which tokenizers are loaded: those of the kinds that the backbones we read have, checked before the library sees them.

A tokenizer is a small program. Replacements that double a text thirty times, or a pattern that backtracks, would take all memory or time.
So each of its parts must be one of those below, with values in range; what they make of a text is then hardly longer than the text.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from promptdsi.checks import Check, choice, integer, items, optional, parse_json, plain, real, record, shown, table, text, truth, within

MOST_MEMORY = 512 << 20  # bytes of its JSON
MOST_TOKENS = 1 << 20  # four times as many as any backbone we read has
MOST_ADDED = 100_000
TOKEN = text(1_000)
WORD_CHARACTERS = 1_000  # WordPiece takes time with the square of the longest word
PIECES = 16  # of a template
PARTS = 8  # of a sequence, in which nothing but a replacement may occur twice: a second pass over bytes would double their number
PATTERNS = ({"Regex": " {2,}"}, {"String": " "}, {"String": "``"}, {"String": "''"}, {"String": "\u2581"})  # none makes a text longer
REPLACEMENTS = ("\u2581", " ", "", '"')
LONGEST_CHARSMAP, LONGEST_REPLACEMENT = 4 << 20, 64  # characters of the map in base64; bytes that a character may become

Fields = Mapping[str, Check]


def check_tokenizer(json: str, vocabulary: int | None = None) -> None:
    """Raise ValueError unless a `tokenizer.json` describes a tokenizer of a known kind whose ids are below `vocabulary`."""
    try:
        value = parse_json(json, most=MOST_MEMORY)
    except ValueError as error:
        raise ValueError(f"the tokenizer is no JSON we read: {error}") from None
    ids = integer(0, (vocabulary or MOST_TOKENS) - 1)
    check = record(
        {"model": lambda model: _model(model, ids)},
        {
            "version": text(20),
            "truncation": plain,  # set anew before each use
            "padding": plain,
            "added_tokens": items(record({"id": ids, "content": TOKEN}, others=truth), MOST_ADDED),
            "normalizer": part(NORMALIZERS),
            "pre_tokenizer": part(PRE_TOKENIZERS),
            "post_processor": part(_post_processors(ids)),
            "decoder": part(DECODERS),
        },
    )
    within("the tokenizer", check, value)
    processor = value.get("post_processor") or {}
    for part_of in (processor, *processor.get("processors", ())):
        _check_template(part_of or {})


def load_tokenizer(json: str, vocabulary: int | None = None) -> Any:
    """The library's tokenizer; ValueError unless it is of a known kind and the library can read it."""
    from tokenizers import Tokenizer as FastTokenizer

    check_tokenizer(json, vocabulary)
    with library_errors():
        return FastTokenizer.from_str(json)


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Errors of the library as ValueError: they are plain exceptions, and a panic in its Rust code is not even that."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
            raise
        raise ValueError(f"the tokenizer cannot be used: {str(error)[:200]}") from None


def part(kinds: Mapping[str, Fields], *, inner: bool = False) -> Check:
    """null, one of some kinds of parts, or a sequence of them."""

    def check(value: Any) -> None:
        if value is None:
            return
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "Sequence" and not inner:
            record({"type": plain}, dict.fromkeys(SEQUENCES, _parts(kinds)))(value)
            return
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f" is of the kind {shown(kind)}, which no backbone we read has; there are {', '.join(kinds)}")
        record({"type": plain}, kinds[kind])(value)

    return check


def _parts(kinds: Mapping[str, Fields]) -> Check:
    """The parts of a sequence."""
    listed = items(part(kinds, inner=True), PARTS)

    def check(value: Any) -> None:
        listed(value)
        names = [entry["type"] for entry in value if entry is not None and entry["type"] != "Replace"]
        if len(set(names)) < len(names):
            raise ValueError(" has a part twice")

    return check


def _charsmap(value: Any) -> None:
    """The character map of SentencePiece in base64: the size of a trie in bytes, the trie, and what characters become, each ended by 0."""
    text(LONGEST_CHARSMAP)(value)
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError(" is no base64") from None
    size = int.from_bytes(raw[:4], "little")
    if not 4 <= size <= len(raw) - 4 or size % 4:  # the library takes as much memory as it says
        raise ValueError(" says another size than it has")
    if max(map(len, raw[4 + size :].split(b"\0"))) > LONGEST_REPLACEMENT:
        raise ValueError(f" lets a character become more than {LONGEST_REPLACEMENT} bytes")


def _pattern(value: Any) -> None:
    if value not in PATTERNS:
        raise ValueError(f" is {shown(value)}, which no backbone we read has")


SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
NOTHING: Fields = {}
REPLACE: Fields = {"pattern": _pattern, "content": choice(REPLACEMENTS)}
METASPACE: Fields = {
    "replacement": text(1),
    "str_rep": text(1),
    "add_prefix_space": truth,
    "prepend_scheme": choice(("always", "never", "first")),
    "split": truth,
}
BYTE_LEVEL: Fields = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), truth)
NORMALIZERS: dict[str, Fields] = {
    "BertNormalizer": {
        **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), truth),
        "strip_accents": optional(truth),
    },
    **dict.fromkeys(("Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Nmt"), NOTHING),
    "Strip": {"strip_left": truth, "strip_right": truth},
    "Replace": REPLACE,
    "Precompiled": {"precompiled_charsmap": optional(_charsmap)},
}
PRE_TOKENIZERS: dict[str, Fields] = {
    **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit"), NOTHING),
    "ByteLevel": BYTE_LEVEL,
    "Metaspace": METASPACE,
    "Punctuation": {"behavior": text(30)},
    "Digits": {"individual_digits": truth},
}
DECODERS: dict[str, Fields] = {
    "WordPiece": {"prefix": text(20), "cleanup": truth},
    "BPEDecoder": {"suffix": text(20)},
    "ByteLevel": BYTE_LEVEL,
    "Metaspace": METASPACE,
    **dict.fromkeys(("Fuse", "ByteFallback"), NOTHING),
    "Replace": REPLACE,
    "Strip": {"content": text(1), "start": integer(0, 10), "stop": integer(0, 10)},
}


def _post_processors(ids: Check) -> dict[str, Fields]:
    pieces = items(record({}, dict.fromkeys(("SpecialToken", "Sequence"), record({"id": TOKEN, "type_id": integer(0, 100)}))), PIECES)
    special = record({"id": TOKEN, "ids": items(ids, PIECES), "tokens": items(TOKEN, PIECES)})
    token = _pair(ids)
    return {
        "BertProcessing": {"sep": token, "cls": token},
        "RobertaProcessing": {"sep": token, "cls": token, "trim_offsets": truth, "add_prefix_space": truth},
        "TemplateProcessing": {"single": pieces, "pair": pieces, "special_tokens": table(TOKEN, special, PIECES)},
        "ByteLevel": BYTE_LEVEL,
    }


def _check_template(processor: Mapping[str, Any]) -> None:
    """Raise ValueError at a template that would end the library: with a token that is not among the special ones, or a text twice."""
    for name in ("single", "pair"):
        texts = [piece["Sequence"]["id"] for piece in processor.get(name, ()) if "Sequence" in piece]
        if not set(texts) <= {"A", "B"} or len(set(texts)) < len(texts):
            raise ValueError(f"the tokenizer.post_processor.{name} has a text twice, or one that there is not")
    pieces, special = [*processor.get("single", ()), *processor.get("pair", ())], processor.get("special_tokens", {})
    tokens = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
    if missing := [token for token in tokens if token not in special]:
        raise ValueError(f"the tokenizer.post_processor has no special token {shown(missing[0])}")


def _pair(ids: Check) -> Check:
    """A special token and its id."""

    def check(value: Any) -> None:
        if type(value) is not list or len(value) != 2:
            raise ValueError(f" is {shown(value)}, expected a token and its id")
        within("0", TOKEN, value[0])
        within("1", ids, value[1])

    return check


def _model(value: Any, ids: Check) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None and isinstance(value, dict):  # old files do not say it: the library tells by the fields
        kind = "BPE" if "merges" in value else "Unigram" if isinstance(value.get("vocab"), list) else "WordPiece"
    word, token = optional(text(100)), optional(TOKEN)
    fields: dict[str, Fields] = {
        "WordPiece": {
            "unk_token": TOKEN,
            "continuing_subword_prefix": text(100),
            "max_input_chars_per_word": integer(1, WORD_CHARACTERS),
        },
        "WordLevel": {"unk_token": TOKEN},
        "BPE": {
            "dropout": optional(real(0, 0)),
            "unk_token": token,
            "continuing_subword_prefix": word,
            "end_of_word_suffix": word,
            **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), truth),
            "merges": _merges,
        },
        "Unigram": {"unk_id": optional(ids), "byte_fallback": truth},
    }
    if not isinstance(kind, str) or kind not in fields:
        raise ValueError(f" is of the kind {shown(kind)}; there are {', '.join(fields)}")
    vocabulary: Callable[[Any], None] = (lambda value: _pieces(value, ids)) if kind == "Unigram" else (lambda value: _tokens(value, ids))
    record({"vocab": vocabulary}, {"type": plain, **fields[kind]})(value)


def _tokens(value: Any, ids: Check) -> None:
    """The tokens of a vocabulary and their ids; checked all at once, since there are many thousands."""
    if type(value) is not dict or not 0 < len(value) <= MOST_TOKENS or set(map(type, value.values())) != {int}:
        raise ValueError(f" is {shown(value)}, expected tokens with their ids")
    ids(min(value.values()))
    ids(max(value.values()))
    TOKEN(max(value, key=len))


def _pieces(value: Any, ids: Check) -> None:
    if type(value) is not list or not 0 < len(value) <= MOST_TOKENS:
        raise ValueError(f" is {shown(value)}, expected pieces with their scores")
    ids(len(value) - 1)
    score = real(-1e6, 1e6)
    for entry in value:
        if type(entry) is not list or len(entry) != 2 or type(entry[0]) is not str or len(entry[0]) > 1000:
            raise ValueError(" holds something else than a piece and its score")
        score(entry[1])


def _merges(value: Any) -> None:
    if type(value) is not list or len(value) > MOST_TOKENS:
        raise ValueError(f" is {shown(value)}, expected a list of pairs")
    for entry in value:
        pair = entry.split(" ") if type(entry) is str else entry
        if type(pair) is not list or len(pair) != 2 or not all(type(side) is str and len(side) <= 1000 for side in pair):
            raise ValueError(" holds something else than pairs")
