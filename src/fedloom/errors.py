"""Errors a user can act on: one sentence that says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from errno import ENOMEM


class FedloomError(Exception):
    """Base of every error meant for the user; the command line prints it without traceback."""


class UnknownName(FedloomError):
    """A name that is not registered; the message offers the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} {name!r}{suggestion(name, self.known)}")


class BadInput(FedloomError):
    """A value, file or combination that cannot be used."""


class PartitionError(FedloomError):
    """A partition that cannot be made from these labels."""


class TrainingError(FedloomError):
    """Local training broke down at a named client and round (a loss that is not finite)."""


class HookError(FedloomError):
    """A method's or term's hook raised: which one, where, and what, in one sentence.

    The original is the `__cause__`; of an error in another process, that process's traceback.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)

    @property
    def where(self) -> str:
        """Hook, client, round and phase; quotes nothing of the data, as the reason may."""
        return str(self.args[0])

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


class WorkerLost(FedloomError):
    """A worker process, here or on a cluster, ended without an answer."""


class DiskError(FedloomError):
    """What a run has to write down cannot be written: the disk is full, or was made read-only."""


class OutOfMemory(FedloomError):
    """A process of a run asked for more memory than it may have."""


class TooFewClients(FedloomError):
    """A round that fewer clients answered than it needs."""


class TooFewAnswers(TooFewClients):
    """The same, although enough clients were present; they may answer when asked again."""


class NotUnmasked(TooFewClients):
    """A sum of masked uploads that too few clients helped to unmask; asking the round again at once
    could give away more than one sum."""


class LeakError(FedloomError):
    """A tensor was about to go, or be written, where its declaration does not allow."""


class CheckpointError(FedloomError):
    """A checkpoint that is missing, truncated or altered."""


class RunFolderError(FedloomError):
    """A run folder that is in use, already holds a run, or holds none."""


@contextmanager
def naming_lack_of_memory(where: str) -> Iterator[None]:
    """Raise `OutOfMemory` where the system refuses memory inside; `where` says who was at what."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as e:
        if not lacks_memory(e):
            raise
        raise OutOfMemory(
            f"{where} is out of memory; give the machine more, or the run fewer workers or smaller"
            " batches"
        ) from None


def lacks_memory(error: BaseException) -> bool:
    """Did the system refuse memory? torch says so in a RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == ENOMEM
    said = str(error)
    return isinstance(error, RuntimeError) and any(words in said for words in _NO_MEMORY)


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


def suggestion(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' when something is near, otherwise the list of what there is."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Imports that only an optional part of the installation makes possible."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise BadInput(
            f"{name} is not installed here ({e.name} is missing); pip install 'fedloom[{name}]'"
        ) from None
