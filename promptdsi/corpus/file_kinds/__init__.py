"""Kinds of files that hold a document. A new one is one file here, and nothing else lists it. It has a NAME and

SUFFIXES                                       in lower case
extract(contents: bytes) -> Extract            the text as Markdown with its headings; ValueError says why there is none

All but `text` and `markdown` are read in a child process with bounds on time and memory (confined.py).
"""
