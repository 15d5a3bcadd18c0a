"""What a simulated node keeps: in the context that Flower hands to it with every message."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from fedloom.core.digest import digest
from fedloom.core.tree import State
from fedloom.core.wire import pack, unpack
from fedloom.engines.lost_state import LostState

_STATES = "fedloom"


class ContextStore:
    """The newest state of a node and the one it came from, by their digests.

    >>> import torch
    >>> store = ContextStore(RecordDict())
    >>> first = store.put({"model": {"w": torch.ones(1)}}, None)
    >>> second = store.put({"model": {"w": torch.zeros(1)}}, first)
    >>> store.get(first), store.get(second)
    ({'model': {'w': tensor([1.])}}, {'model': {'w': tensor([0.])}})
    """

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def get(self, name: str | None) -> State | None:
        """A state by its digest; None is a new client's, the empty name that of nothing kept."""
        if not name:
            return None if name is None else {}
        packed = self._states().get(name)
        if not isinstance(packed, bytes):
            raise LostState(
                f"the state {name[:12]} that the server counts on is not in Flower's context; a"
                " simulation cannot go on after it ended, start it again"
            )
        return unpack(packed)

    def put(self, state: State, came_from: str | None) -> str:
        """Keep a state and the one it came from; returns its digest."""
        name = digest(state) if any(state.values()) else ""
        kept = {key: value for key, value in self._states().items() if key == came_from}
        if name:
            kept[name] = pack(state)
        self._records[_STATES] = ConfigRecord(kept)
        return name

    def _states(self) -> ConfigRecord:
        states = self._records.get(_STATES)
        return states if isinstance(states, ConfigRecord) else ConfigRecord()
