"""Texts as words for exact matching: lower-case words without stop words, identifiers whole and in parts.

Documents and queries are split by the same function, so what matches does not depend on which of them wrote a word how.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from promptdsi.corpus.generators.stopwords import STOPWORDS

# Letters and digits, joined by signs as in part numbers, paths, versions and addresses: `INV-2023-00417`, `etc/nginx`, `v2.13.0-rc1`.
TOKEN = re.compile(r"[^\W_]+(?:[-_./:@+#\\]+[^\W_]+)*")
PART = re.compile(r"[^\W_]+")
# Scripts written without spaces: Chinese characters, kana, Thai, Lao, Khmer and Burmese are matched by pairs of characters.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ffff]+")
IDENTIFIER = re.compile(r"[\d/\\_:@]")  # of joined tokens: well-known and U.S. are words
IDENTIFIER_COUNT = 3  # an identifier counts as three words: whoever types one wants the text that has it, and many share its parts
LONGEST = 200  # characters of a word: longer ones are not typed by people, and would only take space


def split_words(text: str) -> list[str]:
    """The words of a text, repeated as often as they occur.

    Examples
    --------
    >>> split_words("The café sells INV-2023-00417.")
    ['café', 'cafe', 'sells', 'inv-2023-00417', 'inv-2023-00417', 'inv-2023-00417', 'inv', '2023', '00417']
    >>> split_words("Vitamin K of 7 leaves; 東京都")
    ['vitamin', 'k', '7', 'leaves', '東京', '京都']
    """
    words: list[str] = []
    text = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text.lower())
    for token in TOKEN.findall(text):
        if token.isascii() and token.isalnum():  # nearly all of them
            if token not in STOPWORDS:
                words.append(token)
        else:
            words += _parts(token)
    return words


def _parts(token: str) -> list[str]:
    """A token that is joined or not ASCII: the whole, its parts, their pairs of characters, and the forms without diacritics."""
    parts = PART.findall(token)
    words = [token] * (IDENTIFIER_COUNT if IDENTIFIER.search(token) else 1) if len(parts) > 1 and len(token) <= LONGEST else []
    for part in parts:
        for piece in _pieces(part):
            if piece not in STOPWORDS and len(piece) <= LONGEST:
                words.append(piece)
                if not piece.isascii() and (folded := _without_diacritics(piece)) != piece:
                    words.append(folded)
    return words


def _pieces(part: str) -> list[str]:
    """A part as one word, but runs of unspaced scripts as pairs of neighbouring characters."""
    if part.isascii() or not UNSPACED.search(part):
        return [part]
    pieces, end = [], 0
    for run in UNSPACED.finditer(part):
        pieces += [part[end : run.start()]] if run.start() > end else []
        pieces += [first + second for first, second in pairwise(run[0])] or [run[0]]
        end = run.end()
    return pieces + ([part[end:]] if end < len(part) else [])


def _without_diacritics(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))
