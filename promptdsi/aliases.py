"""Names that files of earlier releases use, and what they are called now: manifests, saved methods, run records, experiment files.

Everything that reads such a file asks here, and nothing else knows an old name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANIFEST = {"facts": "metadata"}
RUN_RECORD = {"cell": "run", "chosen": "prompt_counts"}  # docs/research.md
EXPERIMENT_SYSTEM = {"dial": "parameter"}  # [[system]] of an experiment file

SAVED_METHOD = {"dead": "deleted", "facts": "metadata"}
METHOD_METADATA = {"row_length": "row_norm", "first_rows": "d0_rows", "memory": "replay"}

# Method options: flat keywords until 0.x, now fields of records. One old name may stand for several new ones.
METHOD_OPTIONS: dict[str, tuple[str, ...]] = {
    "pooling": ("encoding.pooling",),
    "normalise": ("encoding.normalize",),
    "scale": ("encoding.scale",),
    "max_tokens": ("encoding.max_tokens",),
    "document_tokens": ("encoding.document_tokens",),
    "document_windows": ("encoding.document_windows",),
    "dropout": ("encoding.dropout",),
    "fit_epochs": ("fit.epochs",),
    "fit_lr": ("fit.lr",),
    "fit_row_lr": ("fit.row_lr",),
    "fit_schedule": ("fit.schedule",),
    "fit_row_start": ("fit.row_init",),
    "batch_size": ("fit.batch_size", "add.batch_size"),
    "encoder_decay": ("fit.encoder_decay", "add.encoder_decay"),
    "row_decay": ("fit.row_decay", "add.row_decay"),
    "add_epochs": ("add.epochs",),
    "add_lr": ("add.lr",),
    "add_row_lr": ("add.row_lr",),
    "add_rate": ("add.lr_scale",),
    "add_schedule": ("add.schedule",),
    "add_row_start": ("add.row_init",),
    "hold_row_length": ("rows.fix_row_norm",),
    "row_lengths": ("rows.row_norm",),
    "new_row_length": ("rows.row_norm_scale",),
    "row_anchor": ("rows.anchor_weight",),
    "softmax_scope": ("rows.softmax_scope",),
    "rehearsed": ("rows.replay_size",),
    "rehearsal_weight": ("rows.replay_weight",),
    "weight": ("add.weight",),
    "margin_new": ("add.margin_new",),
    "margin_old": ("add.margin_old",),
    "ridge": ("add.ridge",),
    "constraints": ("add.constraints",),
    "passes": ("add.passes",),
}
# Options that were removed, with the value that had no effect. Some mattered only together with another one.
RETIRED_OPTIONS: dict[str, Any] = {
    "stand_ins": 0,
    "stand_in_range": [0.5, 0.9],
    "stand_in_weight": 1.0,
    "add_sharpness": 1.0,
    "add_pseudo_factor": 1,
}
USED_WITH = {"stand_in_range": "stand_ins", "stand_in_weight": "stand_ins"}


def renamed(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same mapping under the present names.

    Examples
    --------
    >>> renamed({"facts": {}, "number": 3}, MANIFEST)
    {'metadata': {}, 'number': 3}
    """
    return {names.get(name, name): value for name, value in content.items()}
