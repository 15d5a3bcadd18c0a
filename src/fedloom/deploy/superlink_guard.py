"""Flower's SuperLink with a guard: other machines reach what sites need, and nothing else.

Flower serves three interfaces on one port: the sites' (every call signed with a site's key), the
one that submits runs, and the one that hands out a run's tasks. The last two have no
authentication, and a run is code that every site executes. Here both answer only to the server's
own machine.
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
    client, server = (scope.get(end) or ("",) for end in ("client", "server"))
    # This machine may also call itself by one of its outer addresses: then both ends have it.
    local = client[0] in THIS_MACHINE or (client[0] != "" and client[0] == server[0])
    return local or scope["path"].startswith(FOR_SITES)


def main() -> None:
    """`flower-superlink` with the same arguments."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    without_guard = extensions.get_middleware

    def with_guard() -> tuple[Middleware, ...]:
        return (Middleware(Guard), *without_guard())

    extensions.get_middleware = with_guard
    flower_superlink()


if __name__ == "__main__":
    main()
