"""Figures of the paper that follow from formulas: nothing is measured, and what does not follow is named."""

from __future__ import annotations

import re

from .published import MS_MARCO, NQ
from .reports import memory
from .shared import size
from .verdicts import REFUTED, VERIFIED, Claim, arithmetic

WIDTH = memory.WIDTH
# Table 1 of the paper: documents of D0 to D5.
DOCUMENTS = {NQ: (98_743, 2_000, 2_000, 2_000, 2_000, 1_874), MS_MARCO: (289_424, 2_000, 2_000, 2_000, 2_000, 2_000)}
# Topics per data set and backbone (captions of Figures 5 and 6), and "Params." of Topic in millions (Tables 2 and 3).
TOPICS = ((NQ, "BERT", 80, "8.8"), (NQ, "SBERT", 91, "9.0"), (MS_MARCO, "BERT", 182, "10.4"), (MS_MARCO, "SBERT", 193, "10.6"))
# What a method trains beside the rows of new documents, and "Params." on NQ320k and MS MARCO 300k: alike in Tables 2 and 3.
POOLS = (("IncDSI", 0, "7.6", "7.7"), ("L2P, S++", 5 * 21 * WIDTH, "7.6", "7.8"), ("CODA", 10 * 12 * WIDTH, "7.7", "7.8"))
# Where the encoder trains, all rows do. bert-base-uncased and all-mpnet-base-v2 as they are published, with the pooler that nothing here
# reads: without its 590,592 parameters not even the 193 million would follow (192.3).
ENCODERS = {"BERT": 109_482_240, "SBERT": 109_486_464}
ALL_PARAMETERS = {NQ: "193", MS_MARCO: "340"}
DPR = ("DPR: two encoders", 2 * ENCODERS["BERT"] / 1e6, "220")  # in Table 2 alone


def documents() -> Claim:
    """Table 1: totals the other figures rest on, and the prose's 90 % and 2 %."""
    shares = [
        f"{name}: D0 {100 * counts[0] / sum(counts):.1f} %, D1 {100 * counts[1] / sum(counts):.2f} %" for name, counts in DOCUMENTS.items()
    ]
    totals = [sum(counts) for counts in DOCUMENTS.values()] == [memory.NQ, memory.MS_MARCO]
    evidence = f"{memory.NQ:,} and {memory.MS_MARCO:,} documents; the text says 90 % and 2 %, the table {'; '.join(shares)}"
    return Claim("Documents add up to the totals the memory figures rest on", VERIFIED if totals else REFUTED, evidence)


def parameters(backbone: str) -> Claim:
    """Tables 2 and 3: "Params." of all systems but Topic."""
    checks = [
        (f"{label}, {data}", (extra + _new(data) * WIDTH) / 1e6, printed)
        for label, extra, *both in POOLS
        for data, printed in zip(DOCUMENTS, both, strict=True)
    ]
    for data, printed in ALL_PARAMETERS.items():
        trained = ENCODERS[backbone] + sum(DOCUMENTS[data]) * WIDTH
        checks.append((f"Multi, Joint, Sequential, DSI++, {data}", trained / 1e6, printed))
    text = "“Params.”, in millions, are rows of new documents and pools; where the encoder trains, encoder and rows of all documents"
    return arithmetic(text, [*checks, DPR] if backbone == "BERT" else checks)


def topics() -> Claim:
    """Figures 5 and 6: how many topics the paper had can be recomputed from "Params."; keys are fixed and not counted."""
    checks = [(f"{backbone}, {data}", (count * 20 + _new(data)) * WIDTH / 1e6, printed) for data, backbone, count, printed in TOPICS]
    return arithmetic("“Params.” of Topic, in millions, follow from 80, 91, 182 and 193 topics", checks)


def bytes_stored() -> Claim:
    """The section on memory."""
    number = re.compile(r"[\d.]+")
    checks = [(entry.what, float(size(entry.bytes).replace(",", "").split()[0]), number.findall(entry.printed)[0]) for entry in memory.SUMS]
    return arithmetic("Bytes stored follow from the formulas", checks)


def _new(data: str) -> int:
    return sum(DOCUMENTS[data][1:])
