"""Ray gives up a node that has not shown itself 30 seconds after its start; a busy one needs more.

The number is written into Ray's code, in the loop around the question that is made patient here.
"""

from __future__ import annotations

import time
from typing import Any

LIMIT = 600.0


def wait_for_nodes() -> None:
    """From now on this process waits for Ray's nodes to show themselves, and then asks."""
    from ray._private import services

    ask = services.get_node

    def ask_again(*words: Any) -> Any:
        end = time.monotonic() + LIMIT
        while True:
            try:
                return ask(*words)
            except RuntimeError:  # not yet
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    services.get_node = ask_again
