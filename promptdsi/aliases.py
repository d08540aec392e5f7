"""Names that files of earlier releases use, and what they are called now: manifests, saved methods, run records, experiment files.

Everything that reads such a file asks here, and nothing else knows an old name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANIFEST = {"facts": "metadata"}


def renamed(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same mapping under the present names.

    Examples
    --------
    >>> renamed({"facts": {}, "number": 3}, MANIFEST)
    {'metadata': {}, 'number': 3}
    """
    return {names.get(name, name): value for name, value in content.items()}
