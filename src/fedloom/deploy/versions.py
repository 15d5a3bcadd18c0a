"""Which versions of a site and a server go together."""

from __future__ import annotations

from fedloom.errors import BadInput
from fedloom.plain_text import plain
from fedloom.version import __version__


def check_version(site: str, theirs: str, ours: str = __version__) -> None:
    """Refuse a site whose fedloom differs in more than the last number: such versions need not
    understand each other's messages and files. Smaller differences are worth a warning."""
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        raise BadInput(
            f"site {plain(site)!r} has fedloom {plain(theirs)}, the server {ours}, which do not go"
            " together; install the same version at both (docs/operations.md)"
        )
