"""Outputs of stages that nobody trains, for all rows of a split: computed once, not in every round.

They depend on the rows and on the values that the network begins with, and on nothing that happens
in a run. So it does not matter for any result whether they are still in memory or computed again.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from fedloom.core.data import Split
from fedloom.core.frozen import Frozen
from fedloom.core.net import Net, stage_of
from fedloom.core.tree import place
from fedloom.core.wire import pack, unpack
from fedloom.files import write_atomic

SCAN_ROWS = 512
"""Rows per forward pass over training rows when no gradient is needed."""
FEWEST_ROWS = 32
WIDEST_PASS = 2**23
"""Numbers at most that a module makes in one pass of a prediction: larger outputs leave the cache,
and the memory for them is new in every pass (`threads.LEARNT_FROM`)."""
FIXED_NUMBERS = 2**24
"""How many outputs of frozen stages are held for one split at most (64 MB)."""
BUDGET = 2**30
"""Bytes of outputs that a process holds, where nothing else is said."""

Outputs = Mapping[str, Tensor]


def rows_per_prediction(net: Net) -> int:
    """How many rows a prediction passes at once: a power of two, at least `FEWEST_ROWS` and at most
    as many as in a scan.

    Every pass also reorders the weights, so that it takes as many rows as `WIDEST_PASS` lets it. No
    process goes by its own clock: the last bits of an output may depend on this number, and all
    have to agree. Where a network draws at random it is that of a scan, because what is drawn for a
    row depends on the rows beside it.

    >>> from torch import nn
    >>> wide = nn.Sequential(nn.Linear(4, 60_000), nn.Linear(60_000, 3))
    >>> nets = [Net((4,), body=body, head=nn.Linear(3, 2)) for body in (nn.Linear(4, 3), wide)]
    >>> [rows_per_prediction(net) for net in nets]
    [512, 128]
    """
    if any(map(net.draws, net.path_to(net.logits))):
        return SCAN_ROWS
    fitting = max(FEWEST_ROWS, min(SCAN_ROWS, WIDEST_PASS // net.widest_output))
    return 1 << (fitting.bit_length() - 1)


def passes(count: int, most: int) -> Iterator[Tensor]:
    """Which rows go in each pass over so many of them.

    >>> [rows.tolist() for rows in passes(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    for start in range(0, count, most):
        yield torch.arange(start, min(start + most, count))


class FrozenOutputs:
    """What the first stages of a network give for rows, where none of their tensors is trained."""

    def __init__(self, net: Net, frozen: Frozen, budget: int = BUDGET) -> None:
        self._net, self._frozen, self.budget = net, frozen, budget
        self.stages = list(takewhile(self._never_changes, net.path_to(net.logits)))
        self._held: dict[Hashable, Outputs] = {}  # the least recently used first
        self._folder: Path | None = None
        self._rows = ""

    def keep_on_disk(self, folder: Path, rows: str) -> None:
        """Keep them in a folder too, for processes that live for one message only; `rows` is a
        digest of all rows that there are."""
        self._folder, self._rows = folder, rows

    def _never_changes(self, stage: str) -> bool:
        keys = {key for key in self._net.keys if stage_of(key) == stage}
        return bool(keys) and keys <= self._frozen.keys and not self._net.draws(stage)

    def over(self, split: Split, device: torch.device) -> Outputs:
        """Outputs for all rows of a split in their order; empty where there are no such stages, or
        they give too much to hold."""
        if not self.stages:
            return {}
        width = sum(self._net.shape_of(stage).numel() for stage in self.stages)
        if width * len(split) > FIXED_NUMBERS:
            return {}
        # Only rows that are the same whenever they are asked for have a name.
        name: Hashable = getattr(split, "name", None)
        if name is None:
            return self._computed(split, device)
        key = (name, device)
        outputs = self._held.pop(key, None) or self._stored(name, split, device)
        self._hold(key, outputs)
        return outputs

    def _stored(self, name: Hashable, split: Split, device: torch.device) -> Outputs:
        """From the folder, where one was given; put there if they are not in it."""
        if self._folder is None:
            return self._computed(split, device)
        decides = [self._frozen.mark.tolist(), self._rows, repr(name), str(device)]
        digest = sha256(json.dumps([*decides, torch.__version__]).encode()).hexdigest()
        file = self._folder / f"{digest}.outputs"
        with suppress(OSError, ValueError):  # not there, or damaged
            stored = unpack(file.read_bytes())["outputs"]
            return {stage: place(z, device) for stage, z in stored.items()}
        outputs = self._computed(split, device)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, pack({"outputs": dict(outputs)}))
        return outputs

    def _hold(self, key: Hashable, outputs: Outputs) -> None:
        self._held[key] = outputs
        while sum(map(_bytes, self._held.values())) > self.budget:
            del self._held[next(iter(self._held))]

    @torch.no_grad()
    def _computed(self, split: Split, device: torch.device) -> Outputs:
        weights = {key: place(value, device) for key, value in self._frozen.tree.items()}
        last, parts = self.stages[-1], {stage: list[Tensor]() for stage in self.stages}
        for rows in passes(len(split), SCAN_ROWS):
            out = self._net(weights, place(split.x(rows), device), want=last)
            for stage in self.stages:
                parts[stage].append(out[stage])
        return {stage: place(torch.cat(chunks), device) for stage, chunks in parts.items()}

    def __getstate__(self) -> dict[str, object]:
        """For worker processes, which compute those of their own clients."""
        return {**self.__dict__, "_held": {}}


def _bytes(outputs: Outputs) -> int:
    return sum(z.numel() * z.element_size() for z in outputs.values())
