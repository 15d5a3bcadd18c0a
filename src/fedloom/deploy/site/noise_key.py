"""A site's secret, from which the noise of `privacy` is made."""

from __future__ import annotations

import hmac
import os
from hashlib import sha256
from pathlib import Path

from fedloom.errors import BadInput
from fedloom.files import read_regular

FILE = "noise.key"
BYTES = 32


def noise_key(state: Path, what: str) -> bytes:
    """A key for these rows and settings, of the site's secret; the secret is drawn from the
    operating system's secure source when it is first wanted, and never leaves the site."""
    return hmac.digest(_secret(state / FILE), what.encode(), sha256)


def _secret(file: Path) -> bytes:
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = os.urandom(BYTES)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(drawn)
            new.flush()
            os.fsync(new.fileno())
    except FileExistsError:
        drawn = read_regular(file)
    if len(drawn) != BYTES:
        raise BadInput(
            f"{file} is not a key of {BYTES} bytes; restore it, or remove it to draw another one"
        )
    return drawn
