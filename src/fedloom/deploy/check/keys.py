"""The authority's certificate, and the site's private key."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from fedloom.deploy.check.case import Case
from fedloom.deploy.project.public_keys import fingerprint
from fedloom.errors import BadInput


def authority(case: Case) -> str:
    """Whether `ca` holds certificates of authorities that are valid today."""
    ca = case.config.ca
    if ca is None:
        return "no ca is stated: without TLS, for rehearsals on one machine only"
    try:
        certificates = x509.load_pem_x509_certificates(ca.read_bytes())
    except OSError as e:
        raise BadInput(
            f"cannot read the authority's certificate {ca} ({e.strerror}); get ca.crt from whoever"
            " runs the server"
        ) from None
    except ValueError:
        raise BadInput(
            f"{ca} is not a PEM certificate; get ca.crt from whoever runs the server"
        ) from None
    for certificate in certificates:
        if not _is_authority(certificate):
            raise BadInput(
                f"{ca} is a certificate, but not of an authority (perhaps the server's own); get"
                " ca.crt from whoever runs the server"
            )
        outdated = why_outdated(str(ca), certificate)
        if outdated:
            raise BadInput(outdated)
    days = days_until(min(certificate.not_valid_after_utc for certificate in certificates))
    return f"{ca} is an authority's certificate and ends in {days} days"


def why_outdated(what: str, certificate: x509.Certificate) -> str | None:
    """Why a certificate is not valid today, if so."""
    now = datetime.now(UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return (
            f"{what} is not valid before {_date(begins)}, and the clock here says {_date(now)}: it"
            " is probably behind, set it"
        )
    if now > ends:
        return (
            f"{what} expired on {_date(ends)} (the clock here says {_date(now)}); get a new one"
            " from whoever runs the server"
        )
    return None


def days_until(when: datetime) -> int:
    """Whole days from now."""
    return (when - datetime.now(UTC)).days


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def private_key(case: Case) -> str:
    """Whether `key` is one that Flower accepts, and whether others can read it."""
    file = case.config.key
    if file is None:
        return "no key is stated: the server must do without node authentication"
    key = _read_key(file)
    public = f"its public key is {fingerprint(key.public_key())}"
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & stat.S_IRWXO:
        raise BadInput(
            f"every user of this machine can read the private key {file} (mode {mode:04o});"
            f" chmod 600 {file} ({public})"
        )
    summary = f"{file} is a private key ({key.curve.name}); {public}: compare it with the server's"
    if mode & stat.S_IRWXG:
        summary += f"; its mode is {mode:04o}, 0600 is recommended"
    return summary


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    make = f"make one with ssh-keygen -t ecdsa -b 384 -N '' -f {file}"
    try:
        content = file.read_bytes()
    except OSError as e:
        raise BadInput(
            f"cannot read the private key {file} ({e.strerror}); correct key, or let the"
            " SuperNode's user read it"
        ) from None
    if content.startswith(b"ecdsa-"):
        raise BadInput(f"{file} is a public key; state the private one, without .pub")
    try:
        key = load_ssh_private_key(content, None)
    except TypeError:
        raise BadInput(
            f"the private key {file} has a password, which a SuperNode cannot be asked for; take it"
            f" off with ssh-keygen -p -N '' -f {file}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadInput(f"{file} is not a private key in OpenSSH's format; {make}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not uses_nist_ec_curve(key.public_key()):
        raise BadInput(f"{file} is a private key, but not an ecdsa one; {make}")
    return key
