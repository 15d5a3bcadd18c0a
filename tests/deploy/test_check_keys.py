"""`fedloom deploy check` on the authority's certificate and a site's private key."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from collections.abc import Callable

import pytest

pytest.importorskip("flwr")

from certificates_for_tests import DAY, authority, openssh, pkcs8, public_line
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from site_to_spoil import SiteToSpoil, wrong

from helpers import LIMIT


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: authority(-9 * DAY, -2 * DAY).pem, "expired on"),
        (lambda: authority(2 * DAY, 9 * DAY).pem, "it is probably behind"),
        (lambda: authority(ca=False).pem, "not of an authority"),
        (lambda: b"no certificate", "not a PEM certificate"),
        (None, "cannot read the authority's certificate"),
    ],
    ids=["expired", "not yet valid", "no authority", "no certificate", "missing"],
)
def test_a_bad_authority(site: SiteToSpoil, make: Callable[[], bytes] | None, says: str) -> None:
    site.good_server()
    if make is None:
        (site.root / "ca.crt").unlink()
    else:
        (site.root / "ca.crt").write_bytes(make())
    results = site.check()
    assert results["authority"].ok is False
    assert says in results["authority"].message
    assert str(site.root / "ca.crt") in results["authority"].message
    assert results["server TLS"].ok is not True  # it belongs to another authority, or to none
    assert results["clock"].ok  # which trusts nobody
    assert set(wrong(results)) <= {"authority", "server TLS"}


P384 = ec.generate_private_key(ec.SECP384R1())


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (openssh(P384), 0o644, "chmod 600"),
        (pkcs8(P384), 0o600, "not a private key in OpenSSH's format"),
        (public_line(P384), 0o600, "is a public key"),
        (openssh(ed25519.Ed25519PrivateKey.generate()), 0o600, "not an ecdsa one"),
        (None, 0o600, "cannot read the private key"),
    ],
    ids=["world-readable", "pkcs8", "public", "ed25519", "missing"],
)
def test_a_bad_key(site: SiteToSpoil, content: bytes | None, mode: int, says: str) -> None:
    site.good_server()
    if content is None:
        (site.root / "key").unlink()
    else:
        site.write_key(content, mode)
    results = site.check()
    assert wrong(results) == ["key"]
    assert says in results["key"].message
    assert str(site.root / "key") in results["key"].message


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="makes a key with a password")
def test_a_key_with_a_password(site: SiteToSpoil) -> None:
    file = site.root / "key"
    file.unlink()
    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "secret", "-f", str(file)]
    subprocess.run(make, check=True, timeout=LIMIT)
    result = site.check()["key"]
    assert result.ok is False
    assert f"ssh-keygen -p -N '' -f {file}" in result.message


def test_the_fingerprint_is_the_one_ssh_keygen_prints(site: SiteToSpoil) -> None:
    """SHA-256 of the public key's second word, decoded, in base64 without padding."""
    key = ec.generate_private_key(ec.SECP384R1())
    site.write_key(openssh(key))
    digest = hashlib.sha256(base64.b64decode(public_line(key).split()[1])).digest()
    expected = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    result = site.check()["key"]
    assert result.ok
    assert expected in result.message
    assert "secp384r1" in result.message
