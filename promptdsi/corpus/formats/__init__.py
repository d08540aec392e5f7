"""Corpus formats on disk. A new one is one file here, and nothing else lists it. It has a NAME and

recognizes(path) -> bool                                    by name and kind of file
read(path, notes, *, max_unknown, splits) -> Corpus         strictly: errors carry file and line; files of other splits are not opened
write(corpus, path)                                         so that `read` gives an equal corpus; ValueError for what it cannot hold
"""
