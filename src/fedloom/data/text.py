"""Text to token ids: lower-case words, a vocabulary by frequency, a fixed number of positions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from fedloom.errors import BadInput

PADDING, UNKNOWN, FIRST = 0, 1, 2
"""Ids of no word, of one that is not known, and of the first that is."""
VOCABULARY = 98_635  # of the embedding in DBE's fastText
POSITIONS = 200  # DBE's sequence length

# A word is a run without white space and sentence marks; quotes, colons and semicolons separate,
# the other marks are tokens of their own.
_TOKEN = re.compile(r"[.,()!?']|[^\s.,()!?'\";:]+")


def words(text: str) -> list[str]:
    """The tokens of a text.

    >>> words('Oil rises: "It\\'s $50", he said.')
    ['oil', 'rises', 'it', "'", 's', '$50', ',', 'he', 'said', '.']
    """
    return _TOKEN.findall(text.lower())


def tokenize(
    texts: Sequence[str], vocabulary: int = VOCABULARY, positions: int = POSITIONS
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Token ids int32 `[n, positions]`, and the words that have one, of `vocabulary - 2` at most.

    The most frequent words get the lowest ids from 2 on, equally frequent ones in alphabetical
    order; 0 pads short texts at the end, 1 stands for words beyond the vocabulary. Words are
    counted over all texts, as in the papers, which merge the published splits.

    >>> ids, known = tokenize(["b a b", "a b c"], vocabulary=4, positions=4)
    >>> ids.tolist(), known
    ([[2, 3, 2, 0], [3, 2, 1, 0]], ('b', 'a'))
    """
    if vocabulary < 3 or positions < 1:
        raise BadInput(
            f"text needs a vocabulary of at least 3 ids and one position, "
            f"not vocabulary={vocabulary}, positions={positions}"
        )
    tokens = [words(t) for t in texts]
    count = Counter(chain.from_iterable(tokens))
    known = tuple(sorted(count, key=lambda w: (-count[w], w))[: vocabulary - 2])
    return _numbered(tokens, known, positions), known


def numbered(texts: Sequence[str], known: Sequence[str], positions: int) -> np.ndarray:
    """Token ids of texts by words that were counted before.

    >>> numbered(["a new b"], ("b", "a"), positions=4).tolist()
    [[3, 1, 2, 0]]
    """
    return _numbered([words(text) for text in texts], known, positions)


def _numbered(tokens: Sequence[Sequence[str]], known: Sequence[str], positions: int) -> np.ndarray:
    ids = {w: i for i, w in enumerate(known, start=FIRST)}
    x = np.full((len(tokens), positions), PADDING, dtype=np.int32)
    for row, sentence in zip(x, tokens, strict=True):
        cut = sentence[:positions]
        row[: len(cut)] = [ids.get(w, UNKNOWN) for w in cut]
    return x
