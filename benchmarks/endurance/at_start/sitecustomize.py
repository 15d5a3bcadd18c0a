"""Python imports this at its start, in every process of the soak's Ray cluster: an actor that gets
the signal `LIMIT_MEMORY` goes on with hardly any memory."""

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))


def _limit(number: int, _: object) -> None:
    from endurance.commands import limit_memory

    limit_memory()


signal.signal(signal.SIGUSR1, _limit)
