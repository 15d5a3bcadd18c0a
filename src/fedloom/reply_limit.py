"""How many bytes a reply may have, stated in the server's order itself.

The server knows what an honest client would send. It writes the size into the order's group, a
text that Flower stores with the message and that the SuperLink's guard reads before the reply
arrives. The guard needs no torch, so this stands by itself.
"""

from __future__ import annotations

import re

_WRITTEN = re.compile(r"most-bytes=(\d{1,18})")


def write_most_bytes(most: int) -> str:
    """As the group of an order.

    >>> read_most_bytes(write_most_bytes(17)), read_most_bytes("")
    (17, None)
    """
    return f"most-bytes={most}"


def read_most_bytes(group: str) -> int | None:
    """What an order's group says, if it says it."""
    written = _WRITTEN.fullmatch(group)
    return None if written is None else int(written[1])
