"""Where a process spends its time: seconds by activity, each second counted once.

Always running, because it costs less than a microsecond a lap; a run's journal holds the seconds
of every round, and `fedloom run --profile` prints them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

Activity = Literal[
    "local training",
    "data",
    "evaluation",
    "aggregation",
    "secure aggregation",
    "transfer",
    "digests",
    "saving",
    "waiting",
]
Seconds = dict[str, float]


class Stopwatch:
    """Adds up seconds by activity; a second counts for the innermost activity that is running.

    >>> clock = iter([0.0, 1.0, 3.0, 7.0]).__next__
    >>> watch = Stopwatch(clock)
    >>> with watch("local training"):
    ...     with watch("data"):
    ...         pass
    >>> watch.drain()
    {'local training': 5.0, 'data': 2.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: Seconds = {}
        self._running: list[str] = []
        self._since = 0.0

    def __call__(self, activity: Activity) -> _Lap:
        """Time what happens inside a `with`."""
        return _Lap(self, activity)

    def drain(self) -> Seconds:
        """Seconds by activity since the last call; activities that are running add theirs later."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def add(self, seconds: Seconds) -> None:
        """Add the seconds that another process spent."""
        for activity, more in seconds.items():
            self._seconds[activity] = self._seconds.get(activity, 0.0) + more

    def _begin(self, activity: str) -> None:
        self._charge()
        self._seconds.setdefault(activity, 0.0)
        self._running.append(activity)

    def _end(self) -> None:
        self._charge()
        self._running.pop()

    def _charge(self) -> None:
        now = self._clock()
        if self._running:
            innermost = self._running[-1]
            self._seconds[innermost] = self._seconds.get(innermost, 0.0) + now - self._since
        self._since = now


class _Lap:
    """One stretch of an activity."""

    __slots__ = ("_activity", "_watch")

    def __init__(self, watch: Stopwatch, activity: str) -> None:
        self._watch, self._activity = watch, activity

    def __enter__(self) -> None:
        self._watch._begin(self._activity)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch._end()


timed = Stopwatch()
"""This process's stopwatch."""
