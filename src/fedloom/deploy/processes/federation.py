"""SuperLink, SuperNodes and runs of a deployment as processes of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedloom.audit import AuditLog
from fedloom.deploy.processes.children import (
    Child,
    ChildFailed,
    end_all,
    flower_environment,
    listens,
)
from fedloom.deploy.processes.superexec import forking_scripts
from fedloom.deploy.project.folder import PROJECT, Project, out_of, toml_value
from fedloom.deploy.server.audit import AUDIT
from fedloom.errors import BadInput

if TYPE_CHECKING:
    import psutil

    from fedloom.deploy.consent.proposal import App
    from fedloom.deploy.site.config import SiteConfig

CONNECTION = "fedloom"
"""What the SuperLink is called in Flower's configuration of the server."""
COMPLETED = "finished:completed"
"""Flower's status of a run that ended well."""
SITE_MARK = "FEDLOOM_SITE"
"""Environment variable by which a site's SuperNode knows the processes that it started."""
POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Environment variable: seconds between two looks of a SuperExec for a task; by default one, which
every message would wait for."""
UP = 120.0
"""Seconds within which a process has to be up."""


def superlink(project: Project, log: Path | None = None) -> Child:
    """The SuperLink of a project, not started; its database outlives it."""
    link = project.link
    command: list[str | Path] = [sys.executable, "-m", "fedloom.deploy.guard"]
    command += ["--host", link.bind, "--port", str(link.port)]
    command += ["--database", project.root / "server" / "superlink.db"]
    command += ["--disable-runtime-dependency-installation"]
    if link.tls is None:
        command += ["--insecure"]
    else:
        ca, certificate, key = link.tls
        command += ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        command += ["--enable-supernode-auth"]
    environment = {**flower_environment(project.home), PROJECT: str(project.root)}
    # The server app inherits the folder, to which `out` is relative.
    return Child("the SuperLink", command, environment, log, project.root)


def supernode(file: Path, config: SiteConfig, log: Path | None = None) -> Child:
    """The SuperNode of a site, not started; `file` is the site's configuration."""
    file = file.absolute()
    if "'" in str(file):
        raise BadInput(f"{file}: Flower cannot pass on a path with an apostrophe; rename it")
    _script("flower-supernode")  # Flower is installed
    command: list[str | Path] = [sys.executable, "-P", "-m", "fedloom.deploy.gate", file]
    command += ["--superlink", config.superlink]
    command += ["--host", "127.0.0.1", "--port", str(config.port)]
    command += ["--node-config", f"site='{file}'"]
    command += ["--insecure"] if config.ca is None else ["--root-certificates", config.ca]
    command += [] if config.key is None else ["--auth-supernode-private-key", config.key]
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = config.state / ".flower"
    environment = {**flower_environment(home), SITE_MARK: str(file), POLL: "0.2"}
    if sys.platform == "linux":  # elsewhere a process that has imported torch may not be forked
        environment["PATH"] = os.pathsep.join((str(forking_scripts(home)), environment["PATH"]))
    return Child(f"the SuperNode of {config.name}", command, environment, log)


def is_connected(node: Child) -> bool:
    """Has a SuperNode with a log been let in since its start?"""
    return "SuperNode ID:" in node.output()


def app_of(project: Project) -> App:
    """The app that a run of this project sends to the sites, byte by byte."""
    from fedloom.deploy.consent.proposal import App

    return App.of_project(project.root)


class Run:
    """One run, submitted and followed by a child process."""

    def __init__(self, project: Project, overrides: Mapping[str, Any], log: Path) -> None:
        self.project = project
        changes = dict(overrides)
        if "experiment" in changes:
            changes.setdefault("out", out_of(changes["experiment"]))
        self.settings = project.settings(changes)
        self.configuration = {**project.config, **{_dashed(k): v for k, v in changes.items()}}
        project.schema()  # a run without one would fail only at the server
        command: list[str | Path] = [_script("flwr"), "run", project.root, CONNECTION, "--stream"]
        if changes:
            file = log.with_suffix(".toml")
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = (f"{_dashed(k)} = {toml_value(v)}\n" for k, v in changes.items())
            file.write_text("".join(lines), encoding="utf-8")
            command += ["--run-config", file]
        write_connection(project)
        self.child = Child("the run", command, flower_environment(project.home), log)

    @property
    def out(self) -> Path:
        """The server's folder of the run."""
        return self.project.out(self.settings)

    @property
    def number(self) -> str:
        """Flower's, once it was accepted."""
        accepted = re.search(r"started run (\d+)", self.child.output())
        if not accepted:
            raise ChildFailed(f"the run was not accepted:\n{self.child.tail()}")
        return accepted[1]

    def failure(self) -> str:
        """The sentence with which the server ended it; empty: it gave none."""
        with suppress(ValueError, LookupError):  # `audit verify` says what is wrong with the log
            for line in AuditLog(self.project.root / AUDIT).lines():
                if line["event"] == "run failed" and line.get("run") == self.number:
                    return str(line["sentence"])
        return ""

    def status(self) -> str:
        """Flower's own word, e.g. running, finished:failed or `COMPLETED`."""
        arguments = ("list", CONNECTION, "--run-id", self.number, "--format", "json")
        done = _flwr(self.project, *arguments, timeout=UP)
        try:
            return str(json.loads(done.stdout)["runs"][0]["status"])
        except (ValueError, LookupError, TypeError):
            raise ChildFailed(
                f"the SuperLink does not tell about the run:\n{done.stdout}{done.stderr}"
            ) from None

    def wait(self, seconds: float) -> None:
        """Until it is over; raises unless it ended well."""
        self.child.wait(seconds)
        if (status := self.status()) != COMPLETED:
            raise ChildFailed(f"the run is {status}: {self.failure()}\n{self.child.tail()}")


class DeployedFederation:
    """All processes of a deployment on this machine; whatever happens, none stays behind.

    `with DeployedFederation(project) as federation` ends them with the block; logs are in the
    folder `logs` of the project. `link` and `nodes` can be killed and restarted.
    """

    def __init__(self, project: Project, sites: Sequence[str] | None = None) -> None:
        from fedloom.deploy.site.config import SiteConfig

        self.project = project
        self.logs = project.root / "logs"
        self.link = superlink(project, self.logs / "link.log")
        self.sites = {
            name: SiteConfig.read(project.site(name))
            for name in (project.settings().sites if sites is None else sites)
        }
        self.nodes = {
            name: supernode(project.site(name), site, self.logs / f"{name}.log")
            for name, site in self.sites.items()
        }
        self.runs: list[Run] = []

    def start(self, timeout: float = UP) -> None:
        """Link and nodes; returns when all are connected."""
        self.start_link(timeout)
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.ready(lambda node=node: is_connected(node), timeout)  # type: ignore[misc]

    def start_link(self, timeout: float = UP) -> None:
        """The link alone."""
        start_link(self.link, self.project, timeout)

    def submit(self, overrides: Mapping[str, Any] | None = None) -> Run:
        """Start a run."""
        log = self.logs / f"run-{len(self.runs)}.log"
        run = Run(self.project, overrides or {}, log)
        self.runs.append(run)
        run.child.start()
        return run

    def processes(self) -> list[psutil.Process]:
        """All that run, with what they started."""
        children = [*(run.child for run in self.runs), *self.nodes.values(), self.link]
        return [process for child in children for process in child.processes()]

    def end(self) -> None:
        """End every process; may be called twice."""
        try:
            end_all([*(run.child for run in self.runs), *self.nodes.values()])
        finally:
            self.link.end()  # last, so that nodes can still sign off

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def start_link(link: Child, project: Project, timeout: float = UP) -> None:
    """Start the link and wait until it listens."""
    host, _, port = project.link.address.rpartition(":")
    if listens(host, int(port)):
        raise BadInput(f"{project.link.address} is in use; end what listens there, or change port")
    write_connection(project)
    link.start()
    link.ready(lambda: listens(host, int(port)), timeout)


def write_connection(project: Project) -> None:
    """Tell Flower's commands on the server where the SuperLink is."""
    link = project.link
    secure = "insecure = true" if link.ca is None else f"root-certificates = {toml_value(link.ca)}"
    text = (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f"address = {toml_value(link.address)}\n{secure}\n"
    )
    project.home.mkdir(parents=True, exist_ok=True)
    (project.home / "config.toml").write_text(text, encoding="utf-8")


def _dashed(key: str) -> str:
    """A key as Flower's configuration has it."""
    return key.replace("_", "-")


def _flwr(project: Project, *args: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [_script("flwr"), *args]
    environment = flower_environment(project.home)
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"`flwr {' '.join(args)}` did not end in {timeout:g} s") from None


def _script(name: str) -> Path:
    """One of Flower's commands, of the same installation as this Python."""
    script = Path(sys.executable).parent / name
    if not script.exists():
        raise BadInput(f"there is no {script}; install Flower with: pip install 'fedloom[flower]'")
    return script
