"""Parameters of methods: the nested dictionaries that manifests and files hold, and the keywords and records they stand for.

    PromptDSI(encoding=Encoding(pooling="mean"), fit_options=Training(epochs=3, lr=5e-5, row_lr=1e-3, schedule="constant"))
    PromptDSI.from_params({"encoding": {"pooling": "mean"}, "fit": {"epochs": 3}})

Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from promptdsi.aliases import METHOD_OPTIONS, RETIRED_OPTIONS, USED_WITH
from promptdsi.checks import Check, choice, integer, plain, real, record, table, text, truth, within
from promptdsi.errors import UsageError
from promptdsi.model.path import POOLINGS, PREFIX_SPACES, SELECTIONS
from promptdsi.training.topics import ENGINES

# The values an option may have, and its least value, by the last part of its name, whichever record it is in.
CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": ("constant", "epochs", "linear"),
    "row_init": ("random", "document", "queries"),
    "learn": ("everything", "rows", "nothing"),
    "new_corpus_queries": ("gen+train", "gen"),
    "selection": SELECTIONS,
    "prefix_space": PREFIX_SPACES,
    "topic_engine": tuple(ENGINES),
    "softmax_scope": ("all_seen", "new_only"),
    "row_norm": ("mean", "fitted"),
    "constraints": ("mean", "each"),
}
LEAST: dict[str, float] = {
    **dict.fromkeys(("seed", "pseudo_queries", "hard_negatives", "epochs", "lr", "row_lr", "lr_scale", "encoder_decay", "row_decay"), 0),
    **dict.fromkeys(("dropout", "row_norm_scale", "anchor_weight", "replay", "replay_weight", "passage_tokens", "word_weight"), 0),
    **dict.fromkeys(("batch_size", "document_windows", "passes", "replay_size"), 1),
    "scale": 1e-6,
}
# What bounds memory and time of a training: far beyond what is of use, so that only a mistake or a forged manifest exceeds it.
MOST: dict[str, float] = {
    **dict.fromkeys(("pseudo_queries", "hard_negatives", "passes"), 10_000),
    **dict.fromkeys(("document_windows", "batch_size", "max_tokens", "document_tokens", "passage_tokens"), 1 << 16),
    **dict.fromkeys(("lr", "row_lr", "lr_scale", "row_norm_scale", "scale", "anchor_weight", "replay_weight", "word_weight"), 1e6),
    **dict.fromkeys(("encoder_decay", "row_decay", "dropout", "replay"), 1e6),
    **dict.fromkeys(("epochs", "replay_size"), 1 << 20),
    "seed": 2**32 - 1,
}
FREE = "prompt_options"  # its keys belong to the prompt strategy, which checks them
# The constructor keywords whose names would hide the methods `fit` and `add`, and what parameters call them.
PARAM_NAMES = {"fit_options": "fit", "add_options": "add"}


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How texts become vectors and words. Queries are truncated to `max_tokens`.

    With `passage_tokens` a longer document is cut into passages, each with a row; without, it is read in windows and averaged.
    """

    pooling: str = "first"
    normalize: bool = False
    scale: float = 1.0  # multiplies scores in training; unit vectors need more than 1
    max_tokens: int = 32
    document_tokens: int = 256  # in one window
    document_windows: int = 16  # at most
    dropout: float = 0.1
    passage_tokens: int = 0  # at most, title and heading included; 0: one row per document
    words: bool = False  # whether words count beside rows
    word_weight: float = 0.0  # of words in a score; 0: learned on D0's annotated queries
    int8: bool = False  # encode documents and training queries by int8 products: faster on a CPU, approximate; a search never does


KIND_CHECKS: dict[type, Check] = {bool: truth, int: integer(0, 1 << 20), float: real(0, 1e6)}
ENCODING_FIELDS = {field.name: KIND_CHECKS[type(field.default)] for field in dataclasses.fields(Encoding) if field.name != "pooling"}
ENCODING_FIELDS |= {"pooling": choice(POOLINGS), "max_tokens": integer(3, 1 << 16)}
REQUIRED_FIELDS = ("pooling", "normalize", "max_tokens")  # by every search
STORED_PARAMS = record(
    {
        "encoding": record(
            {name: ENCODING_FIELDS[name] for name in REQUIRED_FIELDS},
            {name: check for name, check in ENCODING_FIELDS.items() if name not in REQUIRED_FIELDS},
        )
    },
    {
        "backbone": text(40_000),
        "prompts": text(100),
        "selection": choice(SELECTIONS),
        "prefix_space": choice(PREFIX_SPACES),
        FREE: table(text(100), plain, 100),
        "retired": table(text(100), plain, 100),
        "seed": integer(0, 2**32 - 1),
    },
    others=plain,
)


def merge_params(base: Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Nested parameters merged deeply; later ones win.

    Examples
    --------
    >>> merge_params({"fit": {"epochs": 3, "lr": 0.1}}, {"fit": {"lr": 0.2}})
    {'fit': {'epochs': 3, 'lr': 0.2}}
    """
    merged = dict(base)
    for override in overrides:
        for name, value in override.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
            merged[name] = merge_params(merged[name], value) if both else value
    return merged


def flatten_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Nested parameters under dotted names; `prompt_options`, whose keys are the strategy's, stays one value.

    Examples
    --------
    >>> flatten_params({"fit": {"epochs": 3}, "seed": 0})
    {'fit.epochs': 3, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping) and name != FREE:
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flat[name] = value
    return flat


def nest_params(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten_params`; names without a dot and nested values stay as they are.

    Examples
    --------
    >>> nest_params({"fit.epochs": 3, "prompt_options.top_k": 2, "seed": 0})
    {'fit': {'epochs': 3}, 'prompt_options': {'top_k': 2}, 'seed': 0}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(".")
        nested = merge_params(nested, {outer: {inner: value} if inner else value})
    return nested


def current_params(params: Mapping[str, Any], options: Iterable[str] | None = None) -> dict[str, Any]:
    """Nested parameters under present names, from nested, dotted or old flat ones; `options` limits them to a method's dotted names.

    An option that was removed is dropped where its value had no effect, and otherwise kept under "retired".

    Examples
    --------
    >>> current_params({"batch_size": 32, "stand_ins": 0})
    {'fit': {'batch_size': 32}, 'add': {'batch_size': 32}}
    >>> current_params({"stand_ins": 16})
    {'retired': {'stand_ins': 16}}
    """
    options = None if options is None else set(options)
    current: dict[str, Any] = {}
    for name, value in params.items():
        if name in RETIRED_OPTIONS:
            user = USED_WITH.get(name)
            if value != RETIRED_OPTIONS[name] and (user is None or params.get(user, 0) != RETIRED_OPTIONS[user]):
                current = merge_params(current, {"retired": {name: value}})
            continue
        present = options is not None and name in options
        paths = [] if present else [path for path in METHOD_OPTIONS.get(name, ()) if options is None or path in options]
        current = merge_params(current, nest_params(dict.fromkeys(paths or [name], value)))
    return current


def check_params(method: str, flat: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the types the defaults have, by dotted name; UsageError for an unknown name or a wrong type."""
    checked = {}
    for name, value in flat.items():
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(defaults))}"
            raise UsageError(f"{method} has no parameter {name!r}{hint}")
        checked[name] = _typed(name, value, defaults[name])
    return checked


def check_options(params: Mapping[str, Any], least: Mapping[str, float] = LEAST) -> None:
    """Refuse values that are none of the choices, less than the least or more than the most."""
    for option, value in flatten_params(params).items():
        name = option.rpartition(".")[2]
        if name in CHOICES and value not in CHOICES[name]:
            raise UsageError(f"{option}={value!r} is none of {', '.join(CHOICES[name])}")
        if name in least and value < least[name]:
            raise UsageError(f"{option}={value} is less than {least[name]}")
        if name in MOST and not value <= MOST[name]:
            raise UsageError(f"{option}={value} is more than {MOST[name]:g}")


def check_stored_params(value: Any) -> None:
    """Raise ValueError unless the parameters of a manifest are those a method may have; nothing of the method is imported."""
    STORED_PARAMS(value)
    flat = flatten_params(value)
    for option, given in flat.items():
        if option.rpartition(".")[2] in LEAST:
            within(option, real(), given)
    try:
        check_options(value)
    except (UsageError, TypeError) as error:
        raise ValueError(f" holds {error}") from None


def _typed(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        kinds = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", dict: "a table"}
        raise UsageError(f"{name}={value!r}: expected {kinds[type(default)]}, such as {default!r}")
    return dict(value) if isinstance(value, dict) else value


def params_of(method: Any) -> dict[str, Any]:
    """The constructor's keywords as a nested dictionary that JSON can hold."""
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.init}
    plain = {name: dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value for name, value in values.items()}  # type: ignore[arg-type]
    return {PARAM_NAMES.get(name, name): value for name, value in plain.items()}


def keywords_from(kind: type, params: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor keywords of a method from nested parameters: records are made of the class's defaults and what is given."""
    keywords = {}
    for field in dataclasses.fields(kind):
        name = PARAM_NAMES.get(field.name, field.name)
        if field.init and name in params:
            value = params[name]
            record = isinstance(value, Mapping) and dataclasses.is_dataclass(field.default)
            keywords[field.name] = dataclasses.replace(field.default, **value) if record else value  # type: ignore[type-var]
    return keywords
