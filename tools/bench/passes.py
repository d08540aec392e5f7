"""Measure one pass against two in our own code: learning a corpus, and searching.

    python -m tools.bench.passes      # writes docs/results/bench-passes.{json,md}

Both learn the demo corpus's D1 from the same D0 and answer the same queries, in turn, round after round; ratios are taken within a
round. The first pass is the same in every epoch, so training keeps its vectors, and two passes cost it once per corpus; a search pays
for both passes every time. What a step costs that repeats the first pass is in bench-training (Naive-PromptDSI).
"""

from __future__ import annotations

import copy
import statistics
import time

import torch

from promptdsi.corpus.sources import Request, build_stream
from promptdsi.methods.promptdsi import PromptDSI
from tools import evidence

STRATEGIES, SELECTIONS = ("l2p", "s++", "coda"), ("single", "two-pass")
ROUNDS, EPOCHS, ANSWERS = 5, 5, 64


def main() -> None:
    stream = build_stream("demo", Request())
    d0, d1 = stream.corpora[:2]
    texts = [pair.query.text for pair in d0.pairs("test", kinds=("annotated",))][:ANSWERS]
    rows = []
    for strategy in STRATEGIES:
        begun = {
            how: PromptDSI.from_params(
                {"prompts": strategy, "selection": how, "fit": {"epochs": 0, "row_init": "document"}, "add": {"epochs": EPOCHS}}
                | {"device": "cpu", "offline": True}
            ).fit(d0)
            for how in SELECTIONS
        }
        seconds: dict[str, dict[str, list[float]]] = {what: {how: [] for how in SELECTIONS} for what in ("learning", "search")}
        for round_number in range(ROUNDS + 1):
            for how in SELECTIONS:
                method = copy.deepcopy(begun[how])
                started = time.perf_counter()
                method.add(d1)
                learned = time.perf_counter()
                for text in texts:  # one by one, as people ask
                    method.search([text])
                answered = time.perf_counter()
                if round_number:  # the first warms up
                    seconds["learning"][how].append(learned - started)
                    seconds["search"][how].append(answered - learned)
        row: dict[str, object] = {"strategy": strategy}
        for what, both in seconds.items():
            ratios = [two / single for single, two in zip(both["single"], both["two-pass"], strict=True)]
            row[f"{what}: two passes ÷ one"] = round(statistics.median(ratios), 2)
            row[f"{what}, from … to"] = f"{min(ratios):.2f} … {max(ratios):.2f}"
        rows.append(row)
    facts = {
        "rounds": ROUNDS,
        "epochs": EPOCHS,
        "documents learned": len(d1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    evidence.write("bench-passes", "One pass and two, MiniLM", "make bench", rows, **facts)


if __name__ == "__main__":
    main()
