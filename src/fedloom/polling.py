"""Asking again and again whether something has come."""

from __future__ import annotations

import time


class Pauses:
    """Between two questions: a tenth of the time waited so far, within limits in seconds.

    What comes at once is seen at once, and what takes minutes is not asked for all the time.
    """

    def __init__(self, least: float = 0.02, most: float = 0.5) -> None:
        self.least, self.most = least, most
        self._begun = time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._begun

    def pause(self) -> None:
        """Until the next question."""
        time.sleep(min(max(self.waited / 10, self.least), self.most))
