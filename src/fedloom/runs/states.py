"""What the server and the clients of a run hold at one instant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedloom.core.tree import State


@dataclass(frozen=True)
class States:
    """What the server and the clients hold at one instant of a run."""

    server: State
    clients: Mapping[int, State]

    @classmethod
    def before(
        cls, server: State, clients: Mapping[int, State], replaced: Mapping[int, State | None]
    ) -> States:
        """As they were before a step replaced some clients' states; None: there was none yet."""
        return cls(server, _Before(clients, replaced))


class _Before(Mapping[int, State]):
    """Clients' states as they are, but for some as they were."""

    def __init__(self, now: Mapping[int, State], then: Mapping[int, State | None]) -> None:
        self._now, self._then = now, then

    def __getitem__(self, cid: int) -> State:
        state = self._then[cid] if cid in self._then else self._now.get(cid)
        if state is None:
            raise KeyError(cid)
        return state

    def __iter__(self) -> Iterator[int]:
        return (cid for cid in self._now if self._then.get(cid, {}) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
