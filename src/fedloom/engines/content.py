"""What a bundled message is on the wire: Flower's objects, whose bytes are counted in one way.

The audit logs of sites and server count so, and `deploy try`. The envelope is not among them:
addresses and times, which Flower adds and the gate writes itself.
"""

from __future__ import annotations

from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects


def objects_of(content: RecordDict) -> dict[str, bytes]:
    """Id, which is the sha256, -> bytes of every object that is sent."""
    return {name: each.deflate() for name, each in get_all_nested_objects(content).items()}


def content_bytes(content: RecordDict) -> int:
    """Of all of them."""
    return sum(map(len, objects_of(content).values()))
