"""The command line: one small file per command; each parses, calls, prints."""
