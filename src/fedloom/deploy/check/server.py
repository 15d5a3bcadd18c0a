"""The way to the server: its name, port and certificate, and both clocks."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path

from cryptography import x509
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedloom.deploy.check.case import CannotTell, Case
from fedloom.deploy.check.connection import Server, reason
from fedloom.deploy.check.keys import days_until, why_outdated
from fedloom.errors import BadInput

DATE_STEP = 2.0
"""A Date header shows whole seconds, and the SuperLink's web server renews it once a second."""
SIGNED_TOLERANCE = (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)
"""Seconds a site's clock may be ahead and behind before Flower refuses its signed messages."""
UNSIGNED_TOLERANCE = (60, 60)
"""The same where messages are not signed: certificates and logs still depend on the clock."""
OTHER_AUTHORITY = {2, 7, 18, 19, 20, 21, 30}
"""OpenSSL's codes for a chain that does not end at the given authority (X509_V_ERR_...)."""
OTHER_NAMES = {62, 64}
"""OpenSSL's codes for a certificate that is for another name or address."""


def resolves(case: Case) -> str:
    """Whether the server's name stands for an address."""
    return f"{case.server.host} is {', '.join(case.server.addresses)}"


def reachable(case: Case) -> str:
    """Whether a connection can be made."""
    try:
        _ = case.server.addresses
    except BadInput:
        raise CannotTell("not checked: the server's address is not known") from None
    if case.server.unreachable:
        raise BadInput(case.server.unreachable)
    return f"{case.server} can be reached"


def handshake(case: Case) -> str:
    """Whether the server proves itself to this site; without `ca`, that it speaks plain HTTP."""
    server, ca = case.reached, case.config.ca
    if ca is None:
        return _without_tls(server, case.file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as Flower makes it
    try:
        context.load_verify_locations(cadata=ca.read_text(encoding="ascii"))
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        raise CannotTell(f"not checked: {ca} cannot be used") from None
    try:
        with (
            server.connect() as raw,
            context.wrap_socket(raw, server_hostname=server.host) as secured,
        ):
            shown = secured.getpeercert() or {}
    except ssl.SSLCertVerificationError as e:
        raise BadInput(_why_not_trusted(e, server, ca)) from None
    except OSError as e:
        if server.speaks_http():
            raise BadInput(
                f"{server} speaks no TLS, but {case.file} states ca; have the SuperLink started"
                " with its certificates"
            ) from None
        raise BadInput(
            f"{server} answers, but not with TLS ({reason(e)}); is this the SuperLink's port?"
        ) from None
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
    days = days_until(ends)
    return f"{server} proves itself by a certificate of this authority that ends in {days} days"


def _without_tls(server: Server, file: Path) -> str:
    if server.certificate() is not None:
        raise BadInput(
            f"{server} speaks TLS, but {file} states no ca; get ca.crt from whoever runs the server"
            " and state it as ca"
        )
    if not server.speaks_http():
        raise BadInput(f"{server} answers neither HTTP nor TLS; is this the SuperLink's port?")
    return f"{server} speaks plain HTTP, as {file} has it; nothing is encrypted"


def _why_not_trusted(error: ssl.SSLCertVerificationError, server: Server, ca: Path) -> str:
    code, shown = error.verify_code, server.certificate()
    if code in OTHER_AUTHORITY:
        return (
            f"the certificate of {server} is not from the authority in {ca}; get the ca.crt that"
            " belongs to this server, and trust no other"
        )
    if code in OTHER_NAMES and shown:
        return (
            f"the certificate of {server} is for other names ({', '.join(_names(shown))}); write"
            f" one of them in superlink, or have it made anew for {server.host}"
        )
    outdated = why_outdated(f"the certificate of {server}", shown) if shown else None
    return outdated or f"{server} is not to be trusted with {ca}: {error.verify_message}"


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ["none"]
    return [str(name.value) for name in names]


def clock(case: Case) -> str:
    """Whether this clock and the server's agree well enough."""
    date, asked_at, answered_at = _server_time(case.reached)
    # The true lead of this clock lies between these two.
    least, most = asked_at - date - DATE_STEP, answered_at - date
    ahead, behind = SIGNED_TOLERANCE if case.config.key else UNSIGNED_TOLERANCE
    about = f"{abs(least + most) / 2:.0f} s {'ahead of' if least + most > 0 else 'behind'}"
    difference = f"the clock here is about {about} the server's"
    allowed = f"at most {ahead} s ahead or {behind} s behind is allowed"
    if least > ahead or most < -behind:
        raise BadInput(f"{difference}, {allowed}; set both by NTP (timedatectl set-ntp true)")
    if most > ahead or least < -behind:
        raise CannotTell(f"{difference}, which is near the limit: {allowed}")
    return f"{difference}; {allowed}"


def _server_time(server: Server) -> tuple[float, float, float]:
    for tls in (True, False):
        try:
            header, asked_at, answered_at = server.date(tls)
        except (OSError, HTTPException):
            continue
        try:
            date = parsedate_to_datetime(header or "")
        except ValueError:
            break
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp(), asked_at, answered_at
    raise CannotTell(f"{server} does not tell its time; compare the clocks by hand (date -u)")
