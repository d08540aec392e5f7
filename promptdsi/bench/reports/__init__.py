"""Kinds of report, one file each: a NAME, and `parts(findings)`, which gives headings, paragraphs, tables and figures in order."""
