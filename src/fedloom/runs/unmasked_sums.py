"""Of whose uploads the server asked for the sum, step by step; no resume forgets it.

A run that was killed after a sum was unmasked and before its checkpoint does the step again, and so
does one that stopped because too few helped to unmask, or was rolled back. Clients then send what
they sent before under other masks. If somebody else is there the second time, the two sums differ
by what few clients sent.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedloom.core.secure.setting import FEWEST
from fedloom.errors import NotUnmasked
from fedloom.record import UnmaskedSum
from fedloom.runs.journal import Journal, read_records


class UnmaskedSums:
    """`unmasked.jsonl` of a run whose clients are other people's: a line for every sum."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = set(read_records(path, UnmaskedSum))

    def begin(self, step: int, clients: Collection[int]) -> None:
        """Write down that the sum over these is about to be asked for; refuse it where it tells,
        beside an earlier one of the same step, what few of them sent."""
        asked = UnmaskedSum(step, tuple(sorted(clients)))
        for earlier in self._known:
            differ = sorted({*earlier.clients} ^ {*asked.clients})
            if earlier.step == step and 0 < len(differ) < FEWEST:
                raise NotUnmasked(
                    f"step {step}: a sum over other clients was unmasked before the run stopped,"
                    f" and the two would tell what {_named(differ)} sent; resume when the same"
                    f" clients answer, or, if their operators agree, remove {self.path}"
                )
        if asked in self._known:
            return
        with Journal.open(self.path) as journal:
            journal.append(asked)
            journal.sync()
        self._known.add(asked)


def _named(clients: list[int]) -> str:
    """
    >>> _named([4, 7])
    'clients 4 and 7'
    """
    return f"client{'s' if len(clients) > 1 else ''} {' and '.join(map(str, clients))}"
