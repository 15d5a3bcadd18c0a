"""An exception in a hook becomes one sentence: which hook of which part, where and when.

Which hook it was is read from the traceback, so that calling a hook costs nothing more.
"""

from __future__ import annotations

from traceback import walk_tb
from types import FrameType, TracebackType

from fedloom.core.hooks import hooks
from fedloom.core.phase import Phase
from fedloom.core.term import Term
from fedloom.errors import FedloomError, HookError, lacks_memory


class naming_hooks:
    """Raise `HookError` in place of what a hook raises inside; errors for the user stay as they
    are. `where` is the place and time in pieces, for instance "at client ", 3, ", ", plan: they are
    put together where there is an error, and not for every client."""

    __slots__ = ("_where",)

    def __init__(self, *where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, FedloomError):
            return
        if lacks_memory(error):  # no fault of the hook's
            return
        frames = [frame for frame, _ in walk_tb(trace)]
        names = [name for frame in frames if (name := _hook_of(frame))]
        if not names:
            return
        phases = [name for frame in frames if (name := _phase_of(frame))]
        during = f" (phase {phases[-1]!r})" if phases else ""
        where = "".join(map(str, self._where))
        raise HookError(f"{names[-1]} {where}{during}", _first_line(error)) from error


def _hook_of(frame: FrameType) -> str | None:
    """part.hook, if this frame runs a hook."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if isinstance(first, Term) and code.co_name in hooks(type(first)._frames()):
        return f"{first.name}.{code.co_name}"
    return None


def _phase_of(frame: FrameType) -> str | None:
    """The name of the phase, if this frame is a site's training loop."""
    phase = frame.f_locals.get("phase") if frame.f_code.co_name == "fit" else None
    return phase.name if isinstance(phase, Phase) else None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])
