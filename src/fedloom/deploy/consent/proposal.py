"""What a site is asked to run, as one object with one digest; imports no torch.

A proposal holds all that decides what happens at the site: the app's code, the settings, modules
of the site's own installation that are imported, versions, and the site's policy. Whatever changes
gives another digest, and the site's operator is asked again.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.metadata import version
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput
from fedloom.files import read_regular, write_atomic, write_json
from fedloom.policy import Policy, Refusal, app_refusals, module_refusals, modules_of
from fedloom.policy.keys import concerns_sites
from fedloom.runs.config import OF_PACKAGE

MOST_APP_FILES = 500
MOST_APP_BYTES = 50_000_000
"""Of an app's files when unpacked."""
MOST_WAITING = 20
"""Proposals that wait for approval at a time: the server cannot fill the site's disk with them."""
WAITS = "waits for approval at the site"
"""What a server reads of a run that nobody at the site has decided on."""
PACKAGES = ("fedloom", "torch", "flwr")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
COMPILED = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".zip", ".egg", ".pth")
"""How files end that Python may run, or prefer to the source beside them, and nobody can read."""
MANIFEST = ".info/CONTENT"
"""Flower's own list of an app's files."""


class AppFile(BaseModel):
    """One file of an app."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class App:
    """A Flower app as it arrives: a zip file. Nothing of it is imported or written here."""

    content: bytes

    @classmethod
    def of_project(cls, root: Path) -> Self:
        """As a run of the project in this folder sends it to the sites, byte by byte."""
        from click import ClickException
        from flwr.cli.build import build_fab_from_disk

        try:
            return cls(build_fab_from_disk(root))
        except (ClickException, ValueError, OSError) as e:
            raise BadInput(f"the project {root} makes no app that Flower could send: {e}") from None

    @cached_property
    def sha256(self) -> str:
        """Of the whole app."""
        return sha256(self.content).hexdigest()

    @cached_property
    def sources(self) -> dict[str, bytes]:
        """Path -> content of every file, Flower's own manifest left out."""
        try:
            with zipfile.ZipFile(BytesIO(self.content)) as archive:
                entries = archive.infolist()
                if len(entries) > MOST_APP_FILES:
                    raise BadInput(f"the app has {len(entries)} files, over {MOST_APP_FILES}")
                if sum(entry.file_size for entry in entries) > MOST_APP_BYTES:
                    raise BadInput(f"the app is larger than {MOST_APP_BYTES} bytes when unpacked")
                if len({entry.filename for entry in entries}) != len(entries):
                    raise BadInput("the app has two files of one name")
                for entry in entries:
                    _check_path(entry.filename)
                return {
                    entry.filename: archive.read(entry)
                    for entry in entries
                    if not entry.is_dir() and entry.filename != MANIFEST
                }
        except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, RuntimeError) as e:
            raise BadInput(f"the app is no zip file that can be read ({e})") from None

    @cached_property
    def files(self) -> tuple[AppFile, ...]:
        """What is in it, by path."""
        return tuple(
            AppFile(path=path, bytes=len(data), sha256=sha256(data).hexdigest())
            for path, data in sorted(self.sources.items())
        )

    @cached_property
    def project(self) -> dict[str, Any]:
        """Its `pyproject.toml`."""
        try:
            return tomllib.loads(self.sources["pyproject.toml"].decode())
        except (KeyError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
            raise BadInput(f"the app has no pyproject.toml that can be read ({e!r})") from None

    @property
    def names(self) -> tuple[str, str]:
        """Id and version, as Flower makes them from the app's own project file."""
        try:
            publisher = self.project["tool"]["flwr"]["app"]["publisher"]
            project = self.project["project"]
            names = str(publisher), str(project["name"]), str(project["version"])
        except (KeyError, TypeError):
            raise BadInput("the app's pyproject.toml does not name its app and version") from None
        for name in names:  # Flower makes the path from them where it unpacks the app
            if not _NAME.fullmatch(name):
                raise BadInput(f"the app's pyproject.toml has {name[:80]!r} as a name or version")
        return f"{names[0]}/{names[1]}", names[2]

    @property
    def entry(self) -> str:
        """What Flower loads of it at a site, as `module:attribute`."""
        try:
            return str(self.project["tool"]["flwr"]["app"]["components"]["clientapp"])
        except (KeyError, TypeError):
            raise BadInput("the app's pyproject.toml does not name its clientapp") from None

    def has_module(self, name: str) -> bool:
        """Is this module among its files?"""
        path = name.replace(".", "/")
        return f"{path}.py" in self.sources or f"{path}/__init__.py" in self.sources

    def module_sha256(self, name: str) -> str:
        """Of a module among its files, as `module_sha256` has it of an installed one."""
        top = name.partition(".")[0]
        if f"{top}.py" in self.sources:
            return sha256(self.sources[f"{top}.py"]).hexdigest()
        folder = f"{top}/"
        return canonical_digest(
            {
                file.path.removeprefix(folder): file.sha256
                for file in self.files
                if file.path.startswith(folder) and file.path.endswith(".py")
            }
        )

    def unpack(self, folder: Path) -> None:
        """Write its files into a folder, for a process that may run them."""
        for path, data in self.sources.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


class Proposal(BaseModel):
    """Everything a site is asked to agree to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: str
    app: str
    """sha256 of the whole app."""
    files: tuple[AppFile, ...]
    settings: dict[str, Any]
    modules: dict[str, str]
    """Imported modules that are installed here and not in the app -> sha256."""
    weights: dict[str, str]
    """File of this site that the run begins with -> sha256."""
    versions: dict[str, str]
    policy: str
    """sha256 of the site's rules."""

    @property
    def experiment(self) -> str:
        """Name under which the site keeps its states."""
        return str(self.settings["experiment"])

    @cached_property
    def digest(self) -> str:
        """sha256 of all of it."""
        return canonical_digest(self.model_dump(mode="json"))


def propose(config: SiteConfig, app: App, configuration: Mapping[str, Any]) -> Proposal:
    """What this site would agree to; `configuration` is Flower's, app and run fused."""
    settings = Settings.read(configuration)
    for path in app.sources:
        _check_name(path)
    run = settings.run.model_dump(mode="json")
    chosen = {**settings.model_dump(mode="json", exclude={"run"}), **run}
    start = settings.run.start
    of_package = start is not None and start.startswith(OF_PACKAGE)
    reads_start = start is not None and not of_package and config.policy.allows("local_files")
    return Proposal(
        site=config.name,
        app=app.sha256,
        files=app.files,
        settings={key: value for key, value in chosen.items() if concerns_sites(key)},
        modules={
            name: module_sha256(name)
            for name in modules_of(settings.run)
            if not app.has_module(name)
        },
        weights={str(start): _file_sha256(Path(str(start)))} if reads_start else {},
        versions={name: version(name) for name in PACKAGES},
        policy=policy_digest(config.policy),
    )


def policy_digest(policy: Policy) -> str:
    """sha256 of a site's rules."""
    return canonical_digest(policy.model_dump(mode="json"))


def code_refusals(policy: Policy, app: App, configuration: Mapping[str, Any]) -> list[Refusal]:
    """Of the app, and of the modules that its run imports from it or from this installation, where
    the policy names any by digest."""
    modules = {
        name: app.module_sha256(name) if app.has_module(name) else module_sha256(name)
        for name in modules_of(Settings.read(configuration).run)
    }
    return [*app_refusals(policy, app.sha256), *module_refusals(policy, modules)]


@dataclass(frozen=True)
class Stored:
    """A proposal on the site's disk, with what is needed to look into it."""

    proposal: Proposal
    app: App
    configuration: dict[str, Any]
    run: str = ""
    """The first of Flower's runs that asked for it; empty: none has."""

    @property
    def settings(self) -> Settings:
        """As the run has them."""
        return Settings.read(self.configuration)


class Proposals:
    """The folder `state/proposals`: what the site was asked, each under its digest."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "proposals"

    def digests(self) -> list[str]:
        """All that are stored, oldest first."""
        files = self.folder.glob("*.json") if self.folder.is_dir() else ()
        return [file.stem for file in sorted(files, key=lambda f: (f.stat().st_mtime_ns, f.name))]

    def add(
        self, proposal: Proposal, app: App, configuration: Mapping[str, Any], run: str = ""
    ) -> None:
        """Store a proposal; one that is there already stays as it is."""
        if (self.folder / f"{proposal.digest}.json").exists():
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self.folder / f"{proposal.digest}.fab", app.content)
        record = {
            "proposal": proposal.model_dump(mode="json"),
            "configuration": dict(configuration),
            "run": run,
        }
        write_json(self.folder / f"{proposal.digest}.json", record)

    def read(self, digest: str) -> Stored:
        """By its digest, or a beginning of it that no other one has."""
        matches = [name for name in self.digests() if name.startswith(digest)]
        if len(matches) != 1 or not digest:
            known = ", ".join(name[:12] for name in self.digests()) or "none"
            raise BadInput(f"no single proposal begins with {digest!r}; there are: {known}")
        (name,) = matches
        try:
            record = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            proposal = Proposal.model_validate(record["proposal"])
            app = App((self.folder / f"{name}.fab").read_bytes())
            configuration = dict(record["configuration"])
            stored = Stored(proposal, app, configuration, str(record.get("run", "")))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise BadInput(f"the proposal {name[:12]} is damaged ({e}); delete it") from None
        if proposal.digest != name or app.sha256 != proposal.app:
            raise BadInput(f"the proposal {name[:12]} was altered; delete it")
        return stored

    def remove(self, digest: str) -> None:
        """Forget a proposal."""
        for suffix in (".json", ".fab"):
            (self.folder / f"{digest}{suffix}").unlink(missing_ok=True)


def canonical_digest(value: Any) -> str:
    """sha256 of a value as JSON with sorted keys.

    >>> canonical_digest({"a": 1, "b": 2}) == canonical_digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()


def module_sha256(name: str) -> str:
    """Of an installed module, which is not imported: of its file, or of a package's source files.

    A package counts as a whole, because importing a module of it runs the others too; compiled
    modules of it count as well, and not what Python itself compiled of the sources.
    """
    spec = PathFinder.find_spec(name.partition(".")[0])
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise BadInput(f"the module {name!r} of `imports` is neither in the app nor installed here")
    if spec.submodule_search_locations:
        roots = [Path(place) for place in spec.submodule_search_locations]
        return _files_sha256((file, root) for root in roots for file in _code(root))
    return _file_sha256(Path(str(spec.origin)))


def _code(package: Path) -> Iterator[Path]:
    """Files of a package that Python may run."""
    for file in package.rglob("*"):
        if file.suffix == ".py" or (file.suffix in COMPILED and "__pycache__" not in file.parts):
            yield file


def _files_sha256(files: Iterable[tuple[Path, Path]]) -> str:
    named = {file.relative_to(root).as_posix(): _file_sha256(file) for file, root in files}
    return canonical_digest(named)


def _file_sha256(file: Path) -> str:
    try:
        return sha256(read_regular(file)).hexdigest()
    except OSError as e:
        raise BadInput(f"{file}, which the run needs, cannot be read ({e.strerror})") from None


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\\" in path or ":" in path or not parts:
        raise BadInput(f"the app has a file outside of its folder: {path!r}")
    if "/".join(parts) != path.removesuffix("/"):
        raise BadInput(f"the app writes a path in two ways: {path!r}")
    if "__pycache__" in parts or path.lower().endswith(COMPILED):
        raise BadInput(f"the app has compiled code, which nobody can read: {path!r}")


def _check_name(path: str) -> None:
    """An app comes first on the path of its process: it must not stand in for what we trust."""
    top = PurePosixPath(path).parts[0].removesuffix(".py")
    trusted = {*PACKAGES, "numpy", "sitecustomize", "usercustomize", *sys.stdlib_module_names}
    if top in trusted and path != "pyproject.toml":
        raise BadInput(f"the app's file {path!r} would stand in for the installed module {top!r}")
