"""Who is let in: the folder of the sites' public keys, read anew whenever it changes."""

from __future__ import annotations

import logging
from base64 import b64encode
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import ssh_key_fingerprint

from fedloom.errors import BadInput

log = logging.getLogger("fedloom")

Stamp = tuple[tuple[str, int, int, int], ...]


class PublicKeys:
    """Public key -> name of the site, from the files `NAME.pub` of a folder.

    The folder is looked at on every question, so that a removed file shuts its site out with the
    next request.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamp: Stamp | None = None
        self._names: dict[bytes, str] = {}

    def name_of(self, key: bytes) -> str | None:
        """The site with this key (in Flower's form, see `key_bytes`), if it is let in."""
        return self._read().get(key)

    def names(self) -> list[str]:
        """All sites that are let in."""
        return sorted(self._read().values())

    def _read(self) -> dict[bytes, str]:
        files = sorted(file for file in self.folder.glob("*.pub") if not file.is_symlink())
        stamp = tuple(_stamp(file) for file in files)
        if stamp != self._stamp:
            self._names = self._names_in(files)
            self._stamp = stamp
        return self._names

    def _names_in(self, files: list[Path]) -> dict[bytes, str]:
        names: dict[bytes, str] = {}
        for file in files:
            try:
                key = key_bytes(read_public_key(file))
            except BadInput as e:
                log.warning("%s; it lets nobody in", e)
                continue
            if key in names:
                log.warning("%s is the key of %s too; it lets nobody in", file, names[key])
                continue
            names[key] = file.stem
        return names


def _stamp(file: Path) -> tuple[str, int, int, int]:
    try:
        status = file.stat()
    except OSError:  # removed in this moment
        return file.name, 0, 0, 0
    return file.name, status.st_mtime_ns, status.st_size, status.st_ino


def read_public_key(file: Path) -> ec.EllipticCurvePublicKey:
    """A site's public key from a file in OpenSSH's format."""
    make = "make one with ssh-keygen -t ecdsa -b 384 and send the .pub"
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as e:
        raise BadInput(
            f"cannot read the public key {file} ({e.strerror}); check the path"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput(f"{file} is not a public key in OpenSSH's format; {make}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadInput(f"{file} is a public key, but not an ecdsa one; {make}")
    return key


def key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower's nodes send it."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """As `ssh-keygen -l` prints it."""
    digest = ssh_key_fingerprint(key, hashes.SHA256())
    return "SHA256:" + b64encode(digest).decode().rstrip("=")
