"""Certificates and keys of a federation: an authority, the server, one key pair per site."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedloom.errors import BadInput

AUTHORITY_YEARS, SERVER_YEARS = 10, 2
LOOPBACK = ("localhost", "127.0.0.1")
_LEEWAY = timedelta(hours=1)
"""Certificates are valid from this long ago, for clocks that are behind."""


class Authority:
    """A certificate authority of one's own, in memory.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as scratch:
    ...     folder = Path(scratch)
    ...     authority = Authority("trial")
    ...     authority.save(folder / "ca.crt", folder / "ca.key")
    ...     authority.issue(["server.example"], folder / "server.crt", folder / "server.key")
    ...     sorted(p.name for p in folder.iterdir())
    ['ca.crt', 'ca.key', 'server.crt', 'server.key']
    """

    def __init__(self, name: str) -> None:
        self._key: ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP384R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority"[:64])])
        public = self._key.public_key()
        self.certificate = (
            _builder(self.name, self.name, public, AUTHORITY_YEARS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA384())
        )

    @classmethod
    def load(cls, certificate: Path, key: Path) -> Self:
        """The authority that was saved."""
        try:
            shown = x509.load_pem_x509_certificate(certificate.read_bytes())
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        except OSError as e:
            raise BadInput(
                f"cannot read {e.filename} ({e.strerror}); name the authority's key by --ca-key"
            ) from None
        except (ValueError, TypeError):
            raise BadInput(f"{certificate} and {key} are not an authority's files") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or (
            loaded.public_key() != shown.public_key()
        ):
            raise BadInput(f"{key} is not the key of the authority in {certificate}")
        authority = cls.__new__(cls)
        authority._key, authority.name, authority.certificate = loaded, shown.subject, shown
        return authority

    def save(self, certificate: Path, key: Path) -> None:
        """Write both; who has the key can make servers that every site trusts."""
        _write_public(certificate, self.certificate.public_bytes(serialization.Encoding.PEM))
        _write_private(key, _pem(self._key))

    def issue(self, hosts: Iterable[str], certificate: Path, key: Path) -> None:
        """Write a server's certificate for these names and addresses, and its key."""
        names = list(dict.fromkeys([*hosts, *LOOPBACK]))
        own = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            _builder(subject, self.name, own.public_key(), SERVER_YEARS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(map(_general, names)), critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA384())
        )
        _write_public(certificate, signed.public_bytes(serialization.Encoding.PEM))
        _write_private(key, _pem(own))


def host_names(certificate: Path) -> list[str]:
    """Names and addresses that a server's certificate is for, the first one first."""
    shown = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise BadInput(f"{certificate} names no server; have it issued with its names") from None
    return [str(name.value) for name in names]


def write_key_pair(private: Path, public: Path, comment: str) -> None:
    """A site's key pair as Flower wants it: P-384 in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(
        private,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_public(public, line + f" {comment}\n".encode())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + timedelta(days=365 * years))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_public(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_private(path: Path, data: bytes) -> None:
    """Readable by its owner alone, from the first instant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(data)
