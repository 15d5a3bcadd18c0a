"""Data sets, and their division over clients.

`load` and `Source` come at once; what needs torch is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedloom.data.load import load
from fedloom.data.source import Source

if TYPE_CHECKING:
    from fedloom.data.augment import augmentations
    from fedloom.data.federated import FederatedData, divide, federate
    from fedloom.data.partition import Partition, modifiers, partitions
    from fedloom.data.remote import RemoteData
    from fedloom.data.shift import shifts
    from fedloom.data.split import splits

_LATER = {
    "FederatedData": "federated",
    "Partition": "partition",
    "RemoteData": "remote",
    "augmentations": "augment",
    "divide": "federated",
    "federate": "federated",
    "modifiers": "partition",
    "partitions": "partition",
    "shifts": "shift",
    "splits": "split",
}

__all__ = [
    "FederatedData",
    "Partition",
    "RemoteData",
    "Source",
    "augmentations",
    "divide",
    "federate",
    "load",
    "modifiers",
    "partitions",
    "shifts",
    "splits",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
