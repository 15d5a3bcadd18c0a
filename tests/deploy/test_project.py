"""The folder that `deploy init` writes: Flower takes it, keys are private, certificates hold."""

from __future__ import annotations

import io
import ssl
import stat
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedloom.deploy.cli import deploy_app
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.new import ELSEWHERE, write_project
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput
from fedloom.runs.config import RunConfig
from helpers import fedloom, finish, start_fedloom

SITES = ["hospital-a", "hospital-b", "hospital-c"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    run: dict[str, Any] = {"method": "fedavg + dbe", "rounds": 7, "class_names": ("yes", "no")}
    return write_project(tmp_path / "trial", SITES, host="server.example", run=run)


def test_flower_takes_the_project_without_a_warning(project: Project) -> None:
    _, warnings = load_and_validate(project.root / "pyproject.toml")
    assert warnings == []


def test_nothing_but_the_app_is_sent_to_the_sites(project: Project) -> None:
    """Flower would bundle every .json, .toml and .md of the folder: runs, and what sites are."""
    for place in ("server/first/run/summary.json", "sites/hospital-a/notes.md"):
        (project.root / place).parent.mkdir(parents=True, exist_ok=True)
        (project.root / place).write_text("{}")
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(project.root))).namelist()
    app = {f"federation/{name}.py" for name in ("__init__", "server_app", "client_app")}
    assert set(names) == {"pyproject.toml", ".info/CONTENT", "LICENSE", *app}


def test_files_with_code_of_ones_own_are_sent_along(tmp_path: Path) -> None:
    """In a process of its own, because they are registered there. Flower puts the bundle on the
    path, so sites import them by their names; other Python files of the project stay."""
    things = Path(__file__).parent.parent / "own_code/own_things.py"
    init = ["deploy", "init", tmp_path / "trial", "--sites=a,b", "--no-tls", "--method=small_heads"]
    refused = fedloom(*init)
    assert "unknown method 'small_heads'" in refused.err
    done = finish(start_fedloom(*init, f"--import={things}", f"--model={things}:Net"))
    assert done.code == 0, done.err
    project = Project.read(tmp_path / "trial")
    run = project.settings().run
    assert (run.imports, run.model) == (("own_things",), "own_things:Net")
    (project.root / "sites/a/secret.py").write_text("")
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(project.root))).namelist()
    assert "own_things.py" in names
    assert not [name for name in names if name.startswith(("sites", "server"))]
    assert (project.root / "own_things.py").read_text() == things.read_text()


def test_the_configuration_is_what_was_asked_for(project: Project) -> None:
    settings = project.settings()
    assert settings.sites == tuple(SITES)
    assert settings.class_names == ("yes", "no")
    assert (settings.run.method, settings.run.rounds) == ("fedavg + dbe", 7)
    assert (settings.run.clients, settings.run.min_clients) == (3, 2)
    assert settings.run.lr is None
    assert project.out(settings) == project.root / "server" / "runs" / "first"


def test_every_key_stands_in_the_file_unless_it_has_no_meaning_there(project: Project) -> None:
    """A run can override only what stands there."""
    known = {*Settings.model_fields, *RunConfig.model_fields} - ELSEWHERE
    assert {key.replace("-", "_") for key in project.config} == known
    assert {"lr", "experiment", "seed", "deadline"} <= known


def test_overrides_are_checked_before_anything_is_submitted(project: Project) -> None:
    assert project.settings({"lr": 0.5, "batch_size": 4}).run.batch_size == 4
    with pytest.raises(BadInput, match="did you mean 'rounds'"):
        project.settings({"round": 3})
    with pytest.raises(BadInput, match="lr = -1 will not do"):
        project.settings({"lr": -1})
    with pytest.raises(BadInput, match="data has no meaning in a deployment"):
        project.settings({"data": "digits"})


def test_a_site_is_handed_all_it_needs(project: Project) -> None:
    folder = project.root / "sites" / "hospital-b"
    site = SiteConfig.read(folder / "site.toml")
    assert (site.name, site.superlink) == ("hospital-b", "server.example:9092")
    assert (site.data, site.state) == (folder / "data.npz", folder / "state")
    assert site.ca is not None
    assert site.ca.read_bytes() == (project.root / "server" / "ca.crt").read_bytes()
    ports = {SiteConfig.read(project.site(name)).port for name in SITES}
    assert len(ports | {project.link.port}) == 4


def test_keys_are_their_owner_s_and_as_flower_wants_them(project: Project) -> None:
    private = [project.root / "sites" / name / "site.key" for name in SITES]
    for path in [*private, project.root / "server" / "ca.key", project.root / "server/server.key"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [key.stem for key in project.keys] == SITES
    for path, public in zip(private, project.keys, strict=True):
        key = load_ssh_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        assert load_ssh_public_key(public.read_bytes()) == key.public_key()
    assert len({path.read_bytes() for path in private}) == 3


@pytest.mark.parametrize("host", ["server.example", "localhost", "127.0.0.1"])
def test_sites_accept_the_server_under_its_names(project: Project, host: str) -> None:
    assert shake_hands(project, host) == {"client", "server"}


def test_sites_refuse_another_server(project: Project, tmp_path: Path) -> None:
    """Under another name, or signed by an authority of the same name."""
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
        shake_hands(project, "other.example")
    other = write_project(tmp_path / "other" / "trial", SITES, host="server.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate"):
        shake_hands(project, "server.example", authority=other.link.ca)


def shake_hands(project: Project, host: str, authority: Path | None = None) -> set[str]:
    """A TLS handshake in memory, the client strict; who is content with it."""
    assert project.link.tls is not None
    ca, certificate, key = project.link.tls
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(authority or ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[str] = set()
    for turn in range(12):
        try:
            ends[turn % 2].do_handshake()
            done.add(("client", "server")[turn % 2])
        except ssl.SSLWantReadError:
            continue
    return done


def test_certificates_end_in_two_and_in_ten_years(project: Project) -> None:
    assert project.link.tls is not None
    ca, certificate, _ = project.link.tls
    for path, years in ((certificate, 2), (ca, 10)):
        read = x509.load_pem_x509_certificate(path.read_bytes())
        now = datetime.now(UTC)
        assert read.not_valid_before_utc < now
        assert round((read.not_valid_after_utc - now).days / 365) == years


def test_the_link_listens_where_it_is_to_be_reached(tmp_path: Path, project: Project) -> None:
    assert project.link.bind == "0.0.0.0"
    assert project.link.address == "127.0.0.1:9092"
    assert write_project(tmp_path / "local", SITES).link.bind == "127.0.0.1"


def test_limits_and_a_site_s_own_keys_stand_in_the_files_with_their_defaults(
    project: Project,
) -> None:
    """As comments: with the marks taken off, what is read is the same."""
    for file, keys in (
        (project.root / "server" / "link.toml", ("connections", "most_body_mb")),
        (project.site("hospital-a"), ("most_disk",)),
    ):
        before = Project.read(project.root).link, SiteConfig.read(project.site("hospital-a"))
        text = file.read_text()
        for key in keys:
            assert text.count(f"\n# {key} = ") == 1, key
            text = text.replace(f"\n# {key} = ", f"\n{key} = ")
        file.write_text(text)
        assert (Project.read(project.root).link, SiteConfig.read(project.site("hospital-a"))) == (
            before
        )


def test_without_tls_there_are_no_certificates(tmp_path: Path) -> None:
    written = write_project(tmp_path / "plain", SITES, tls=False)
    assert written.link.tls is None
    assert written.keys == []
    site = SiteConfig.read(written.site("hospital-a"))
    assert (site.ca, site.key) == (None, None)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(BadInput, match="is not empty"):
        write_project(tmp_path, SITES)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("sites", [[], ["a", "a"], ["../a"], ["a b"]])
def test_sites_need_names(tmp_path: Path, sites: list[str]) -> None:
    with pytest.raises(BadInput):
        write_project(tmp_path / "new", sites)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_no_project_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fedloom deploy init"):
        Project.read(tmp_path)


def test_the_command_writes_a_project(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        deploy_app,
        ["init", str(tmp_path / "new"), "--sites", "a, b", "--method", "ditto", "--rounds", "5"],
    )
    assert done.exit_code == 0, done.output
    settings = Project.read(tmp_path / "new").settings()
    assert (settings.sites, settings.run.method, settings.run.rounds) == (("a", "b"), "ditto", 5)
