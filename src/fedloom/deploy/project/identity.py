"""Who takes part: adding and revoking sites, rotating keys, renewing the server's certificate.

The guard looks at the folder of public keys on every request, so each of these takes effect with
the next one, for the one site that it concerns.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from fedloom.deploy.project.certificates import Authority, host_names, write_key_pair
from fedloom.deploy.project.folder import SCHEMA, Project, toml_value
from fedloom.deploy.project.new import next_port, site_text
from fedloom.deploy.project.public_keys import fingerprint, key_bytes, read_public_key
from fedloom.deploy.server.audit import record_event
from fedloom.deploy.settings import NAME
from fedloom.errors import BadInput
from fedloom.files import write_atomic

REVOKED = Path("server") / "revoked"
_SITES = re.compile(r'^sites = "(.*)"$', re.MULTILINE)


@dataclass(frozen=True)
class Identity:
    """A site's key as it is now."""

    site: str
    fingerprint: str
    folder: Path | None
    """With the private key, where it was made here: to be handed to the site."""


def add_site(project: Project, name: str, key: Path | None = None) -> Identity:
    """Let a new site in; with its public `key`, or with a pair that is made here."""
    if not re.fullmatch(NAME, name):
        raise BadInput(f"site {name!r} will not do; names are letters, digits, '.', '_' and '-'")
    if _public(project, name).exists():
        raise BadInput(f"{name} has a key already; give it another by `fedloom deploy rotate`")
    folder = project.site(name).parent
    if not project.site(name).exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        address = _address_for_sites(project)
        text = site_text(name, address, next_port(project.root / "sites"), tls=True)
        write_atomic(project.site(name), text)
    if project.link.ca is not None:
        shutil.copy(project.link.ca, folder / "ca.crt")
    if project.schema_file.exists():
        shutil.copy(project.schema_file, folder / SCHEMA)
    identity = _new_key(project, name, key)
    _name_in_configuration(project, name)
    record_event(project.root, "site added", site=name, key=identity.fingerprint)
    return identity


def revoke_site(project: Project, name: str) -> Identity:
    """Shut a site out; its public key is kept among the revoked, and not accepted again."""
    public = _existing(project, name)
    identity = Identity(name, fingerprint(read_public_key(public)), None)
    _revoke(project, public)
    record_event(project.root, "site revoked", site=name, key=identity.fingerprint)
    return identity


def rotate_key(project: Project, name: str, key: Path | None = None) -> Identity:
    """Give a site another key; the one before is refused from now on."""
    public = _existing(project, name)
    before = read_public_key(public)
    _check_new(project, key)
    _revoke(project, public)
    identity = _new_key(project, name, key)
    old, new = fingerprint(before), identity.fingerprint
    record_event(project.root, "key rotated", site=name, key=new, before=old)
    return identity


def renew_certificate(project: Project, ca_key: Path | None = None) -> list[str]:
    """A new certificate of the same authority for the server's names; returns the names."""
    if project.link.tls is None:
        raise BadInput(f"{project.root} is without TLS and has no certificate to renew")
    ca, certificate, key = project.link.tls
    authority = Authority.load(ca, ca_key or ca.with_name("ca.key"))
    names = host_names(certificate)
    new_certificate, new_key = (f.with_name(f".{f.name}.new") for f in (certificate, key))
    for leftover in (new_certificate, new_key):
        leftover.unlink(missing_ok=True)
    authority.issue(names, new_certificate, new_key)
    # The guard uses the two when they fit each other, so their order does not matter.
    os.replace(new_key, key)
    os.replace(new_certificate, certificate)
    record_event(project.root, "certificate renewed", names=names)
    return names


def _new_key(project: Project, name: str, key: Path | None) -> Identity:
    public = _public(project, name)
    public.parent.mkdir(parents=True, exist_ok=True)
    if key is not None:
        _check_new(project, key)
        identity = Identity(name, fingerprint(read_public_key(key)), None)
        write_atomic(public, key.read_bytes())
        return identity
    folder = project.site(name).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    private = folder / "site.key"
    private.unlink(missing_ok=True)
    write_key_pair(private, public, name)
    return Identity(name, fingerprint(read_public_key(public)), folder)


def _check_new(project: Project, key: Path | None) -> None:
    """A key that is or was somebody's is not taken."""
    if key is None:
        return
    wanted = key_bytes(read_public_key(key))
    for file in [*project.keys, *(project.root / REVOKED).glob("*.pub")]:
        if key_bytes(read_public_key(file)) == wanted:
            state = "was revoked" if file.parent.name == REVOKED.name else f"is {file.stem}'s"
            raise BadInput(f"the key in {key} {state}; have the site make another one")


def _revoke(project: Project, public: Path) -> None:
    mark = re.sub(r"[^A-Za-z0-9]", "", fingerprint(read_public_key(public)))[6:18]
    folder = project.root / REVOKED
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.replace(public, folder / f"{public.stem}-{mark}.pub")


def _public(project: Project, name: str) -> Path:
    if project.link.tls is None:
        raise BadInput(f"{project.root} is without TLS, so sites have no keys")
    return project.keys_folder / f"{name}.pub"


def _existing(project: Project, name: str) -> Path:
    public = _public(project, name)
    if name not in [file.stem for file in project.keys]:
        known = ", ".join(file.stem for file in project.keys) or "none"
        raise BadInput(f"no key of a site {name!r} is let in; those that are: {known}")
    return public


def _address_for_sites(project: Project) -> str:
    """As the other sites were told it, or by the first name of the certificate."""
    for file in sorted((project.root / "sites").glob("*/site.toml")):
        if match := re.search(r'^superlink = "(.*)"$', file.read_text("utf-8"), re.MULTILINE):
            return match[1]
    assert project.link.certificate is not None
    return f"{host_names(project.link.certificate)[0]}:{project.link.port}"


def _name_in_configuration(project: Project, name: str) -> None:
    """Runs that begin from now on expect the site too."""
    file = project.root / "pyproject.toml"
    sites = project.settings().sites
    if name in sites or not sites:
        return
    text = file.read_text(encoding="utf-8")
    line = f"sites = {toml_value((*sites, name))}"
    changed, count = _SITES.subn(lambda _: line, text)
    if count != 1:
        raise BadInput(f'{file} has no line sites = "..."; add {name} to the sites there')
    write_atomic(file, changed)
