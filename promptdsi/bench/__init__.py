"""Experiments: a TOML file and a scale give runs; each run is recorded as one JSON file; reports read those files alone."""
