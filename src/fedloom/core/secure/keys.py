"""Keys of clients, what two of them agree on, and masks that follow from that.

Key agreement (ECDH and HKDF) and the encryption of shares (Fernet) are Flower's. Its generator of
masks is not used: it folds a secret of 256 bits into 32, which anybody can try out, and goes on
with a generator that is not made for secrets. Masks here are AES-256 in counter mode.
"""

from __future__ import annotations

import hmac
from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.errors import BadInput, needs_extra

if TYPE_CHECKING:
    from fedloom.core.secure.numbers import Numbers

SECRET_BYTES = 32
PUBLIC_BYTES = 33
TOKEN_BYTES = 140
"""Of an encrypted share with what it is for."""
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256: its private keys are the numbers below."""


def derived(secret: bytes, *purpose: Hashable) -> bytes:
    """A secret of 32 bytes for one purpose; it tells nothing of others, nor of what it is from."""
    return hmac.digest(secret, repr(purpose).encode(), "sha256")


@cache
def _flower() -> Any:
    with needs_extra("flower"):
        from flwr.common.secure_aggregation.crypto import symmetric_encryption
    return symmetric_encryption


class KeyPair:
    """A private key on P-256, which follows from a secret, and its public one."""

    def __init__(self, secret: bytes) -> None:
        with needs_extra("flower"):
            from cryptography.hazmat.primitives.asymmetric import ec
            from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        wide = derived(secret, "private key", 0) + derived(secret, "private key", 1)
        number = int.from_bytes(wide) % (_ORDER - 1) + 1
        self._private = ec.derive_private_key(number, ec.SECP256R1())
        form = Encoding.X962, PublicFormat.CompressedPoint
        self.public: bytes = self._private.public_key().public_bytes(*form)

    def agreed(self, public: bytes) -> bytes:
        """What only the holders of these two keys know."""
        key: bytes = _flower().generate_shared_key(self._private, _point(public))
        return key


def is_public_key(public: bytes) -> bool:
    """Is it a point of the curve?"""
    try:
        _point(public)
    except BadInput:
        return False
    return True


def _point(public: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    except ValueError:
        raise BadInput(f"{public.hex()} is no public key of secure aggregation") from None


def sealed(key: bytes, text: bytes) -> bytes:
    """Encrypted under a key that two clients agreed on."""
    token: bytes = _flower().encrypt(key, text)
    return token


def opened(key: bytes, token: bytes) -> bytes:
    """The reverse; refuses what was not sealed with this key."""
    from cryptography.fernet import InvalidToken

    try:
        text: bytes = _flower().decrypt(key, token)
    except InvalidToken:
        raise BadInput("a share of another client was not sealed for this one") from None
    return text


def mask(key: bytes, count: int) -> Numbers:
    """So many numbers of 64 bits from a key of 32 bytes, which is used for nothing else."""
    with needs_extra("flower"):
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)


def fingerprint(public: bytes) -> str:
    """Of a public key, short enough to be compared by telephone: 16 hexadecimal digits of its
    sha256."""
    from hashlib import sha256

    digits = sha256(public).hexdigest()[:16]
    return " ".join(digits[at : at + 4] for at in range(0, 16, 4))
