"""How rows become clients: partitioners by family, modifiers, and the partition they make."""

from fedloom.data.partition.assignment import ClientRows, Partition
from fedloom.data.partition.registry import (
    Pool,
    deal,
    modifiers,
    partitions,
    register_partition,
)

__all__ = [
    "ClientRows",
    "Partition",
    "Pool",
    "deal",
    "modifiers",
    "partitions",
    "register_partition",
]
