"""Figures the paper prints, to be set beside ours (METHOD 15): NQ320k after D5, in per cent."""

from __future__ import annotations

Published = dict[str, tuple[float | None, ...]]  # by label: D0 H@10, D0 M@10, A_5 H@10, A_5 M@10

BERT: Published = {
    "Multi": (0.0, 0.0, 91.4, 83.9),
    "Joint": (85.9, 70.1, 84.7, 68.4),
    "DPR": (70.3, 51.9, 70.1, 49.8),
    "Sequential": (0.0, 0.0, 27.4, 22.2),
    "DSI++": (2.6, 2.6, 28.6, 22.1),
    "IncDSI": (86.4, 72.2, 85.8, 69.5),
    "IncDSI*": (86.5, 72.0, 85.2, 68.6),
    "L2P": (86.1, 71.2, 90.8, 73.2),
    "S++": (86.1, 71.4, 90.5, 73.8),
    "CODA": (86.0, 71.2, 90.3, 74.2),
    "Topic": (86.0, 71.3, 90.5, 74.2),
}
SBERT: Published = {
    "Multi": (0.0, 0.0, 92.0, 83.6),
    "Joint": (86.8, 71.5, 86.4, 69.7),
    "Sequential": (0.0, 0.0, 25.2, 20.3),
    "DSI++": (2.7, 2.4, 28.5, 22.3),
    "IncDSI": (87.1, 72.3, 86.6, 70.5),
    "IncDSI*": (87.0, 72.6, 87.3, 73.2),
    "L2P": (86.9, 72.6, 91.1, 74.0),
    "S++": (86.8, 72.5, 91.0, 74.8),
    "CODA": (87.0, 72.1, 91.1, 74.2),
    "Topic": (86.8, 72.1, 91.1, 75.1),
}
# Table 4, BERT: the same with two passes, and the speed-up the paper claims for one.
TWO_PASSES: dict[str, tuple[float, float, float, float]] = {
    "L2P": (86.1, 71.3, 90.3, 74.1),
    "S++": (86.1, 71.3, 90.5, 74.0),
    "CODA": (86.0, 71.2, 90.6, 74.2),
}
SPEED_UP = {"L2P": 4.3, "S++": 4.2, "CODA": 1.7}


def published(backbone: str) -> tuple[str, Published]:
    """The paper's table for a backbone: its SBERT is all-mpnet-base-v2; everything else stands beside BERT."""
    return ("SBERT, NQ320k", SBERT) if "mpnet" in backbone else ("BERT, NQ320k", BERT)
