"""Postings: which passage contains which word how often, as arrays mapped from their file, and the statistics they are weighted by.

The postings of a corpus are one immutable blob; idf and average length are statistics of their own, computed once and frozen.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.split_words import split_words

LARGEST_COUNT = np.iinfo(np.uint16).max
PREFIX, PREFIX_TYPE = 8, ">u8"
LEAST_AVERAGE = 0.01  # words per passage; with less, the weight of an empty passage would be no number
SMALL_POSTINGS = 2_048  # passages: smaller postings are merged, as rows are
Ints = NDArray[np.int64]


class Terms(Sequence[bytes]):
    """Sorted terms in one array of bytes, mapped from a file. Their first bytes are held in memory: looking terms up reads few others."""

    def __init__(self, text: NDArray[np.uint8], ends: Ints) -> None:
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, terms: Sequence[bytes]) -> Terms:
        return cls(np.frombuffer(b"".join(terms), np.uint8), np.cumsum([len(term) for term in terms], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: Any) -> Any:
        return self.text[self.ends[number - 1] if number else 0 : self.ends[number]].tobytes()

    def find(self, terms: Sequence[bytes]) -> list[int]:
        """The number of each of some terms; -1 for one that is not there."""
        prefixes = np.frombuffer(b"".join(term[:PREFIX].ljust(PREFIX, b"\0") for term in terms), PREFIX_TYPE).astype(np.uint64)
        lows, highs = (np.searchsorted(self.prefixes, prefixes, side).tolist() for side in ("left", "right"))
        numbers = []
        for term, low, high in zip(terms, lows, highs, strict=True):
            number = bisect.bisect_left(self, term, low, high) if high - low > 1 else low
            numbers.append(number if number < high and self[number] == term else -1)
        return numbers

    @cached_property
    def prefixes(self) -> NDArray[np.uint64]:
        """The first eight bytes of each term as one number, so that numbers are in the order of the terms: (T,)."""
        starts = np.concatenate([[0], self.ends[:-1]])[: len(self)]
        prefixes = np.zeros(len(self), np.uint64)
        for place in range(PREFIX):
            inside = starts + place < self.ends
            prefixes[inside] |= self.text[starts[inside] + place].astype(np.uint64) << np.uint64(8 * (PREFIX - 1 - place))
        return prefixes


class Occurrences(NamedTuple):
    """The passages that contain a term, ascending, and how often each does: (n,) each."""

    passages: NDArray[np.int32]
    counts: NDArray[np.uint16]


class Postings(NamedTuple):
    """The words of a corpus's passages. The field names are those of the tensors on disk."""

    text: NDArray[np.uint8]  # the sorted terms, one after the other
    ends: Ints  # (T,), where each term ends
    pointers: Ints  # (T + 1,), where the postings of each term begin
    passages: NDArray[np.int32]  # (P,), ascending within a term
    counts: NDArray[np.uint16]  # (P,), how often the term occurs in the passage
    lengths: NDArray[np.int32]  # (n,), words of each passage

    @property
    def terms(self) -> Terms:
        return Terms(self.text, self.ends)

    def occurrences(self, number: int) -> Occurrences:
        """Where the term with this number occurs."""
        inside = slice(*self.pointers[number : number + 2].tolist())
        return Occurrences(self.passages[inside], self.counts[inside])

    @property
    def live(self) -> int:
        """How many passages have words: one that was purged has none."""
        return int((self.lengths > 0).sum())

    @classmethod
    def build(cls, texts: Iterable[str], salt: str = "") -> Postings:
        """The postings of some passages' texts; with a `salt` words are stored as hashes."""
        vocabulary: dict[str, int] = {}
        numbers: list[int] = []
        lengths: list[int] = []
        for text in texts:
            words = split_words(text)
            numbers += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
            lengths.append(len(words))
        owners = np.repeat(np.arange(len(lengths)), lengths)
        return cls.from_occurrences([encode_term(word, salt) for word in vocabulary], np.array(numbers, np.int64), owners, lengths=lengths)

    @classmethod
    def from_occurrences(cls, terms: Sequence[bytes], numbers: Ints, owners: Ints, weights: Any = None, *, lengths: Any) -> Postings:
        """Postings from pairs of term number and passage, each counted once or by its weight; equal pairs are added up."""
        order = sorted(range(len(terms)), key=terms.__getitem__)
        rank = np.empty(len(terms), np.int64)
        rank[order] = np.arange(len(terms))
        count = max(len(lengths), 1)
        pairs, inverse = np.unique(rank[numbers] * count + owners, return_inverse=True)
        counts = np.bincount(inverse, weights, minlength=len(pairs)).clip(max=LARGEST_COUNT).astype(np.uint16)
        pointers = np.searchsorted(pairs, np.arange(len(terms) + 1) * count)
        sorted_terms = Terms.of([terms[number] for number in order])
        passages = (pairs % count).astype(np.int32)
        return cls(sorted_terms.text, sorted_terms.ends, pointers, passages, counts, np.asarray(lengths, np.int32))

    @classmethod
    def concat(cls, parts: Sequence[Postings]) -> Postings:
        """The passages of all parts, numbered on."""
        vocabulary: dict[bytes, int] = {}
        numbers, owners, first = [], [], 0
        for part in parts:
            local = np.array([vocabulary.setdefault(term, len(vocabulary)) for term in part.terms], np.int64)
            numbers.append(np.repeat(local, np.diff(part.pointers)))
            owners.append(part.passages.astype(np.int64) + first)
            first += len(part.lengths)
        counts, lengths = (np.concatenate(arrays) for arrays in zip(*((part.counts, part.lengths) for part in parts), strict=True))
        return cls.from_occurrences(list(vocabulary), np.concatenate(numbers), np.concatenate(owners), counts, lengths=lengths)

    def without(self, passages: Iterable[int]) -> Postings:
        """The same with the words of some passages erased, and every term that no other passage has."""
        erased = np.zeros(len(self.lengths), bool)
        erased[list(passages)] = True
        remaining = ~erased[self.passages]
        owners = np.repeat(np.arange(len(self.ends)), np.diff(self.pointers))[remaining]
        left = np.flatnonzero(np.bincount(owners, minlength=len(self.ends)))
        terms, position = self.terms, np.searchsorted(left, owners)
        lengths = np.where(erased, 0, self.lengths)
        named = [terms[number] for number in left]
        passages = self.passages[remaining].astype(np.int64)
        return type(self).from_occurrences(named, position, passages, self.counts[remaining], lengths=lengths)

    def extended(self, passages: Sequence[int], added: Sequence[Sequence[str]], salt: str = "") -> Postings:
        """Some of the passages, in this order, with more words each."""
        position = np.full(len(self.lengths), -1, np.int64)
        position[list(passages)] = np.arange(len(passages))
        chosen = position[self.passages] >= 0
        numbers = np.repeat(np.arange(len(self.ends)), np.diff(self.pointers))[chosen]
        present, local = np.unique(numbers, return_inverse=True)
        vocabulary = {self.terms[number]: place for place, number in enumerate(present.tolist())}
        pairs = [(encode_term(word, salt), owner) for owner, words in enumerate(added) for word in words]
        new = np.array([vocabulary.setdefault(term, len(vocabulary)) for term, _ in pairs], np.int64)
        owners = np.concatenate([position[self.passages[chosen]], np.array([owner for _, owner in pairs], np.int64)])
        counts = np.concatenate([self.counts[chosen].astype(np.int64), np.ones(len(pairs), np.int64)])
        lengths = self.lengths[list(passages)] + np.array([len(words) for words in added], np.int32)
        return type(self).from_occurrences(list(vocabulary), np.concatenate([local, new]), owners, counts, lengths=lengths)

    def check(self) -> None:
        """Raise ValueError unless the arrays fit together, so that no search reads beside them."""
        types = [np.uint8, np.int64, np.int64, np.int32, np.uint16, np.int32]
        if [array.dtype for array in self] != types or any(array.ndim != 1 for array in self):
            raise ValueError("word postings of another type")
        ends, pointers = self.ends, self.pointers
        fits = len(pointers) == len(ends) + 1 and pointers[0] == 0 and (ends[-1] if len(ends) else 0) == len(self.text)
        if not (fits and _ascends(ends) and _ascends(pointers[1:]) and pointers[-1] == len(self.passages) == len(self.counts)):
            raise ValueError("word postings that do not fit together")
        if not self.counts.all() or self.lengths.min(initial=0) < 0:
            raise ValueError("word postings that count less than nothing")
        if len(self.passages) and not 0 <= self.passages.min() <= self.passages.max() < len(self.lengths):
            raise ValueError("word postings of passages that do not exist")


def _ascends(ends: Ints) -> bool:
    """Whether numbers ascend from 1 on; compared, not subtracted: a difference of 64 bits may overflow and look right."""
    return not len(ends) or bool(ends[0] > 0 and (ends[1:] > ends[:-1]).all())


class WordStatistics(NamedTuple):
    """What idf and lengths are measured by: document frequencies of the terms and the average length, over `passages` passages."""

    text: NDArray[np.uint8]
    ends: Ints
    frequencies: NDArray[np.int32]  # (T,), passages that contain each term
    passages: int
    average: float  # words per passage

    @classmethod
    def of(cls, *parts: Postings) -> WordStatistics:
        """The statistics of all passages of some postings, which are read one after the other."""
        live, words = sum(part.live for part in parts), sum(int(part.lengths.sum()) for part in parts)
        frequencies: Counter[bytes] = Counter()
        for part in parts:
            frequencies.update(dict(zip(part.terms, np.diff(part.pointers).tolist(), strict=True)))
        terms = sorted(frequencies)
        packed = Terms.of(terms)
        counts = np.array([frequencies[term] for term in terms], np.int32)
        return cls(packed.text, packed.ends, counts, live, words / live if live else 1.0)

    def grown(self, parts: Sequence[Postings]) -> WordStatistics:
        """These statistics or, once there are twice as many passages, those of all parts.

        An index that began with five notes is not bound to their statistics for ever; in between no score of an old document moves.
        """
        return WordStatistics.of(*parts) if sum(part.live for part in parts) >= 2 * self.passages else self

    @property
    def terms(self) -> Terms:
        return Terms(self.text, self.ends)

    def idf(self, number: int) -> float:
        """Lucene's inverse document frequency of a term by its number; of one that was not there, -1, that of a frequency of 0."""
        frequency = int(self.frequencies[number]) if number >= 0 else 0
        return math.log(1 + (self.passages - frequency + 0.5) / (frequency + 0.5))

    def only(self, present: Sequence[Terms]) -> WordStatistics:
        """The same without the terms that no remaining passage has; their idf becomes that of an unseen term."""
        everything = list(self.terms)
        remaining = np.flatnonzero(np.max([np.array(terms.find(everything)) for terms in present], axis=0, initial=-1) >= 0).tolist()
        fewer = Terms.of([everything[number] for number in remaining])
        return self._replace(text=fewer.text, ends=fewer.ends, frequencies=self.frequencies[remaining])


def merge_small(postings: Sequence[Postings]) -> list[Postings]:
    """The same passages with small consecutive postings merged into one: a query looks each term up once in each."""
    merged: list[Postings] = []
    small: list[Postings] = []
    for part in [*postings, None]:
        if part is not None and len(part.lengths) < SMALL_POSTINGS:
            small.append(part)
            continue
        if small:
            merged.append(small[0] if len(small) == 1 else Postings.concat(small))
            small = []
        if part is not None:
            merged.append(part)
    return merged


def encode_term(word: str, salt: str) -> bytes:
    """A word as it is stored: in UTF-8 or, with a salt, as a keyed hash.

    Whoever has the index can then still test whether a word occurs, but cannot read the words off the file.
    """
    return hashlib.blake2b(word.encode(), digest_size=8, key=salt.encode()).digest() if salt else word.encode()


def to_tensors(part: Postings | WordStatistics) -> dict[str, NDArray[Any]]:
    """The arrays of a record by name; single numbers become arrays of one."""
    return {name: value if isinstance(value, np.ndarray) else np.array([value], np.float64) for name, value in part._asdict().items()}


def statistics_from(tensors: Mapping[str, NDArray[Any]]) -> WordStatistics:
    """Statistics read from a file; ValueError unless its arrays fit together."""
    text, ends, frequencies = (tensors[name] for name in ("text", "ends", "frequencies"))
    single = [tensors[name] for name in ("passages", "average")]
    if [array.dtype for array in (text, ends, frequencies)] != [np.uint8, np.int64, np.int32] or any(array.size != 1 for array in single):
        raise ValueError("word statistics of another type")
    fits = text.ndim == ends.ndim == 1 and ends.shape == frequencies.shape and (ends[-1] if len(ends) else 0) == len(text)
    passages, average = (float(array.reshape(-1)[0]) for array in single)
    if not (fits and _ascends(ends) and 0 <= passages < 2**31 and LEAST_AVERAGE <= average < 2**31):
        raise ValueError("word statistics that do not fit together")
    if len(ends) and not 0 <= frequencies.min() <= frequencies.max() <= passages:
        raise ValueError("word statistics of more passages than there are")
    return WordStatistics(text, ends, frequencies, int(passages), average)
