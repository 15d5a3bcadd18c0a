"""A site's secret, from which the noise of `privacy` is made."""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from fedloom.errors import BadInput
from fedloom.files import read_regular

FILE = ".noise-key"
"""Beside the folders of experiments, whose names do not begin with a dot."""
BYTES = 32


def noise_key(state: Path, what: str) -> bytes:
    """A key for these rows and settings, of the site's secret. It is drawn from the operating
    system's secure source when it is first wanted, and never leaves the site."""
    file = state / FILE
    if not file.exists():
        _draw(file)
    secret = read_regular(file)
    if len(secret) != BYTES:
        raise BadInput(
            f"{file} is not a key of {BYTES} bytes; restore it from a backup. Without one, remove"
            " it when no run with privacy is to go on: with another key a round that is asked"
            " for again gets other noise, and two noises hide less"
        )
    return hmac.digest(secret, what.encode(), sha256)


def _draw(file: Path) -> None:
    """Write a new secret, readable by its owner only; of two processes the first one's stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=file.parent, prefix=FILE) as whole:
        whole.write(os.urandom(BYTES))
        whole.flush()
        os.fsync(whole.fileno())
        with suppress(FileExistsError):
            os.link(whole.name, file)
