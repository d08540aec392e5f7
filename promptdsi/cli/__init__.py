"""The command line: one small file per group of commands; each parses, calls, prints."""
