"""A process that looks into what a stranger proposes: bounded in time and memory, and offline."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import BaseModel

from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput, FedloomError
from fedloom.policy.quantities import size_text

if sys.platform != "win32":  # which bounds no process's memory
    import resource

SECONDS = 900.0
"""Within which it has to end."""
OUT_OF_MEMORY = 77
"""The exit code that says so."""
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
"""What keeps libraries from asking for downloads; `confined` refuses them."""
Result = TypeVar("Result", bound=BaseModel)


class CannotJudge(FedloomError):
    """A proposal that cannot be looked into, and so is refused."""


class OutOfBounds(CannotJudge):
    """It takes more time or memory than the site gives."""


def run_confined(
    module: str, file: Path, words: Sequence[str | Path], kind: type[Result]
) -> Result:
    """What a module of ours writes to the file `--result`, run as a process for the site of this
    `site.toml`."""
    with tempfile.TemporaryDirectory(prefix="fedloom-") as scratch:
        result = Path(scratch) / "result.json"
        command = [sys.executable, "-P", "-m", module, file, *words, "--result", result]
        try:
            done = subprocess.run(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
                env={**os.environ, **OFFLINE},
            )
        except subprocess.TimeoutExpired:
            raise OutOfBounds(f"it takes over {SECONDS:g} s to judge it") from None
        if done.returncode == OUT_OF_MEMORY or done.returncode < 0:
            most = size_text(most_memory(SiteConfig.read(file)))
            raise OutOfBounds(
                f"it takes more than {most} of memory to judge it; most_memory in {file} may permit"
                " more"
            )
        if done.returncode != 0 or not result.exists():
            raise CannotJudge(f"the proposal cannot be judged: {_last_lines(done.stderr)}")
        return kind.model_validate_json(result.read_bytes())


def _last_lines(text: str) -> str:
    return " ".join(text.strip().splitlines()[-3:])[-600:]


def most_memory(site: SiteConfig) -> int:
    """What such a process may take: as the site's file says, or half of the machine's."""
    half: int = psutil.virtual_memory().total // 2
    return half if site.most_memory is None else site.most_memory


@contextmanager
def confined(file: Path) -> Iterator[None]:
    """This process, from now on; what goes wrong within ends it, with a sentence or a code."""
    _bound_memory(most_memory(SiteConfig.read(file)))
    sys.addaudithook(_refuse_connections)
    try:
        yield
    except FedloomError as e:
        raise SystemExit(str(e)) from None
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, MemoryError) or "can't allocate memory" in str(e):
            raise SystemExit(OUT_OF_MEMORY) from None
        raise


def _bound_memory(most: int) -> None:
    """Not the address space: data that lies in the cache is mapped, however large it is."""
    if sys.platform != "win32":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def _refuse_connections(event: str, details: tuple[Any, ...]) -> None:
    """An audit hook of Python, which no code can take away again."""
    if event == "socket.getaddrinfo" or (
        event in ("socket.connect", "socket.sendto", "socket.sendmsg")
        and isinstance(details[1], tuple)
    ):
        raise BadInput(
            "nothing is downloaded before a proposal is approved: put what it needs on this machine"
            " first, or have it proposed without"
        )
