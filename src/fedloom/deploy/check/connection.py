"""The SuperLink as a site's machine sees it."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from cryptography import x509
from flwr.supercore.address import parse_address

from fedloom.errors import BadInput

PATIENCE = 5.0
"""Seconds until a server that has not answered counts as unreachable."""


@dataclass(frozen=True)
class Server:
    """Where the SuperLink is, and what it answers."""

    host: str
    port: int

    @classmethod
    def of(cls, written: str) -> Server:
        """From `host:port`."""
        parsed = parse_address(written)
        if parsed is None or not parsed[0] or not parsed[1]:
            raise BadInput(
                f"superlink = {written!r} is no address; write host:port, without https://"
            )
        return cls(parsed[0].strip("[]"), parsed[1])

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @cached_property
    def addresses(self) -> list[str]:
        """What the name stands for."""
        try:
            entries = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as e:
            raise BadInput(
                f"the name {self.host} cannot be resolved ({reason(e)}); correct superlink, or"
                " ask for a DNS or /etc/hosts entry"
            ) from None
        return sorted({str(entry[4][0]) for entry in entries})

    @cached_property
    def unreachable(self) -> str | None:
        """Why no connection can be made, if so; cached, because an attempt may take long."""
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return (
                f"nothing listens at {self}; have the SuperLink started there, or correct superlink"
            )
        except TimeoutError:
            return (
                f"no answer from {self} within {PATIENCE:g} s; have the firewall on either side let"
                f" TCP port {self.port} through"
            )
        except (OSError, UnicodeError) as e:
            return f"{self} cannot be reached ({reason(e)}); look at this machine's network"
        return None

    def connect(self) -> socket.socket:
        """A TCP connection."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def certificate(self) -> x509.Certificate | None:
        """What the server shows, not verified; None where it speaks no TLS."""
        try:
            with (
                self.connect() as raw,
                _unverified().wrap_socket(raw, server_hostname=self.host) as secured,
            ):
                shown = secured.getpeercert(binary_form=True)
        except OSError:
            return None
        return x509.load_der_x509_certificate(shown) if shown else None

    def date(self, tls: bool) -> tuple[str | None, float, float]:
        """The Date header, and this machine's time before asking and after the answer.

        Not verified: a machine whose clock is wrong cannot verify a certificate, and the request
        holds nothing secret.
        """
        connection = (
            HTTPSConnection(self.host, self.port, timeout=PATIENCE, context=_unverified())
            if tls
            else HTTPConnection(self.host, self.port, timeout=PATIENCE)
        )
        try:
            connection.connect()
            asked_at = time.time()
            connection.request("GET", "/")
            answer = connection.getresponse()
            return answer.getheader("Date"), asked_at, time.time()
        finally:
            connection.close()

    def speaks_http(self) -> bool:
        """Whether a plain request is answered."""
        try:
            self.date(tls=False)
        except (OSError, HTTPException):
            return False
        return True


def _unverified() -> ssl.SSLContext:
    """For looking only: nothing is sent over such a connection, and nothing from it is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def reason(error: Exception) -> str:
    """An error in few words."""
    return str(getattr(error, "strerror", None) or error).split("\n")[0]
