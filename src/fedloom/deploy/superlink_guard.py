"""Flower's SuperLink with a guard: other machines reach what sites need, and nothing else.

Flower serves three interfaces on one port: the sites' (every call signed with a site's key), the
one that submits runs, and the one that hands out a run's tasks. The last two ask nobody who they
are, and a run is code that every site executes. Here both answer only to the server's own machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FOR_SITES = "/v1/fleet/"
THIS_MACHINE = ("127.0.0.1", "::1")


class Guard:
    """Refuses requests of other machines that are not a site's."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and not _allowed(scope):
            from starlette.responses import PlainTextResponse

            refusal = PlainTextResponse("only the server's own machine may do this\n", 403)
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _allowed(scope: Any) -> bool:
    asks, answers = (scope.get(end) or ("",) for end in ("client", "server"))
    # A machine that calls itself by one of its outer addresses has it at both ends.
    here = asks[0] in THIS_MACHINE or (asks[0] != "" and asks[0] == answers[0])
    return here or scope["path"].startswith(FOR_SITES)


def main() -> None:
    """`flower-superlink` with the same arguments."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    theirs = extensions.get_middleware

    def ours() -> tuple[Middleware, ...]:
        return (Middleware(Guard), *theirs())

    extensions.get_middleware = ours
    flower_superlink()


if __name__ == "__main__":
    main()
