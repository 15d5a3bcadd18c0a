"""Certificates and keys, good and bad, made on the spot."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def name(self) -> str:
        (common,) = self.certificate.subject
        return str(common.value)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def signed(
    subject: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    begins: timedelta,
    ends: timedelta,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(by, hashes.SHA256())


def authority(
    begins: timedelta = -DAY, ends: timedelta = 100 * DAY, ca: bool = True, name: str = "authority"
) -> Authority:
    """By default all have the same name, as those of a project that was made twice."""
    key = ec.generate_private_key(ec.SECP384R1())
    basic = x509.BasicConstraints(ca=ca, path_length=None)
    return Authority(key, signed(name, key.public_key(), name, key, begins, ends, basic))


def server_context(
    folder: Path,
    by: Authority,
    begins: timedelta = -DAY,
    ends: timedelta = 50 * DAY,
    host: str = "127.0.0.1",
) -> ssl.SSLContext:
    """A server's certificate for one address, ready to be shown."""
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
    shown = signed("server", key.public_key(), by.name, by.key, begins, ends, names)
    file = folder / "server.pem"
    file.write_bytes(pkcs8(key) + shown.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def openssh(key: Any) -> bytes:
    form = serialization.PrivateFormat.OpenSSH
    plain = serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


def pkcs8(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_line(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
