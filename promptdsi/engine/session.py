"""Graphs ready to run."""

from __future__ import annotations

import os


class Session:
    """An onnxruntime session and the names of its inputs. `threads` is how many one run may use."""

    def __init__(self, graph: bytes, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or cores()
        # Threads that spin between the products of a query save a fifth of its time; between queries they would take a core from others.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        try:
            found = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of onnxruntime's own, which have no common base: a graph that does not fit together
            raise ValueError(str(error)) from error
        self.run, self.wanted = found.run, [one.name for one in found.get_inputs()]


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
