"""Keywords that methods share, grouped into records, and the nested dictionaries that manifests and files hold of them.

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
from promptdsi.errors import UsageError

SCHEDULES = ("constant", "epochs", "linear")
ROW_INITS = ("random", "document", "queries")
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


@dataclass(frozen=True, kw_only=True)
class Training:
    """How weights are trained on one corpus. `lr` is the encoder's learning rate, or the prompts' where the encoder is frozen."""

    epochs: int
    lr: float
    row_lr: float
    schedule: str
    batch_size: int = 128
    encoder_decay: float = 0.01
    row_decay: float = 0.01
    row_init: str = "random"  # random, document (its vector) or queries (their mean vector)


LEARNS = ("everything", "rows", "nothing")


@dataclass(frozen=True, kw_only=True)
class FirstTraining(Training):
    """How D0 is trained: encoder and rows, rows over the encoder as it is, or nothing, which leaves rows at their initial vectors."""

    learn: str = "everything"


@dataclass(frozen=True, kw_only=True)
class ScaledTraining:
    """Training that continues at a multiple, `lr_scale`, of the learning rates of `fit`."""

    epochs: int
    lr_scale: float = 1.0
    schedule: str
    batch_size: int = 128
    encoder_decay: float = 0.01
    row_decay: float = 0.01
    row_init: str = "random"


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """What bounds new rows so that old documents stay retrievable."""

    fix_row_norm: bool = False
    row_norm: str = "mean"  # of D0's rows; or fitted: the norm D0's rows have in such a neighborhood
    row_norm_scale: float = 1.0  # times that
    anchor_weight: float = 0.0
    softmax_scope: str = "all_seen"  # or new_only


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


def check_options(params: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]], least: Mapping[str, float]) -> None:
    """Refuse values that are none of the choices, or less than the least, by dotted name."""
    flat = flatten_params(params)
    for option, allowed in choices.items():
        if flat[option] not in allowed:
            raise UsageError(f"{option}={flat[option]!r} is none of {', '.join(allowed)}")
    for option, bound in least.items():
        if flat[option] < bound:
            raise UsageError(f"{option}={flat[option]} is less than {bound}")


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
