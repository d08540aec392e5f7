"""Retrieval metrics by name, per query and with intervals, and the figures of a continual run."""
