"""Experiments: a TOML file and a scale give cells; each cell is one run, kept as one JSON file; reports read those files alone."""
