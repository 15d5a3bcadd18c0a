"""The site itself: its name, data, state folder, device, port and versions."""

from __future__ import annotations

import errno
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import torch

from fedloom.data import Source, load
from fedloom.data.local import input_columns
from fedloom.deploy.check.case import CannotTell, Case
from fedloom.deploy.consent.proposal import App, code_refusals
from fedloom.deploy.gate.assess import assess_settings
from fedloom.deploy.processes.children import FLWR
from fedloom.deploy.project.folder import run_configuration
from fedloom.deploy.project.schema import Column, Schema, check_site, site_schema
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines import check_device
from fedloom.engines.flower.site_store import SiteStore
from fedloom.errors import BadInput, FedloomError, suggestion

ROOM = 10**9
"""Bytes that should be free where states are kept."""


def site_name(case: Case) -> str:
    """Whether the federation, where it is known, has a site of this name."""
    name, sites = case.config.name, case.settings.sites if case.settings else ()
    if sites and name not in sites:
        raise BadInput(
            f"the federation does not know a site {name!r}{suggestion(name, sites)}; correct name"
            f" in {case.file}"
        )
    return f"the federation will know this site as {name}"


def data(case: Case) -> str:
    """Whether the rows can be read and divided as the federation does."""
    config = case.config
    site = SiteData(config, case.settings) if case.settings and not case.code_to_run else None
    source = site.source if site else load(config.data, label=config.label)
    summary = f"{config.data} has {len(source)} rows, {source.kind} {source.shape}"
    by_class = _rows_by_class(source)
    if by_class:
        kind = "class" if source.targets == "classes" else "label"
        summary += f"; by {kind}: " + ", ".join(f"{name} {n}" for name, n in by_class.items())
    few = [name for name, n in by_class.items() if n == 1]
    if few:
        raise BadInput(
            f"{summary}; {', '.join(few)} cannot be in both training and test with one row: add"
            " rows or take it out"
        )
    if site:
        own = site.divided.client(0)
        summary += f"; {len(own.train)} rows for training, {len(own.test or ())} for test"
    return summary


def _rows_by_class(source: Source) -> dict[str, int]:
    """Class or label -> its rows; none of numbers."""
    if source.targets == "numbers":
        return {}
    if source.targets == "labels":
        counts = source.y.sum(axis=0).astype(int).tolist()
    else:
        counts = np.bincount(source.y, minlength=source.classes).tolist()
    return dict(zip(source.class_names, counts, strict=True))


def schema(case: Case) -> str:
    """Whether the data is what all sites agreed on, column by column."""
    config = case.config
    if config.schema_file is None:
        raise CannotTell(
            f"{case.file} names no schema_file, so order and units of columns are not compared; get"
            " schema.toml from whoever runs the server"
        )
    try:
        load(config.data, label=config.label)
    except FedloomError:  # the check of the data says why
        raise CannotTell("not checked: the data cannot be read") from None
    agreed = Schema.read(config.schema_file, "get it from whoever runs the server")
    size = case.settings.run.image_size if case.settings else None
    names = agreed.class_names
    source = load(
        config.data,
        label=config.label,
        class_names=names,
        image_size=size,
        targets=agreed.targets,
    )
    actual = site_schema(source, config.data, config.label, config.units, agreed)
    check_site(agreed, actual, config.data)
    columns = f", {len(agreed.columns)} columns in their order" if agreed.columns else ""
    summary = f"the data is as {config.schema_file} says{columns} (digest {agreed.digest[:12]})"
    stated = {Column.of_header(h).name: Column.of_header(h).unit for h in _headers(config)}
    unseen = [name for name in agreed.units if not stated.get(name) and name not in config.units]
    if unseen:
        summary += (
            f"; warning: your table does not state units: see that {unseen[0]} is in"
            f" {agreed.units[unseen[0]]!r}, and so on for {len(unseen)} columns"
        )
    return summary


def policy(case: Case) -> str:
    """Whether the site's rules permit the federation's settings, where these are known."""
    if case.settings is None:
        return "the rules can be read; what they refuse is told with --project, or by `approve`"
    if case.project is not None and (refused := _code_refused(case, case.project)):
        raise BadInput(f"the policy of {case.file} refuses the federation's code: {refused}")
    if case.code_to_run:
        raise CannotTell(
            f"not checked: code of the federation ({', '.join(case.code_to_run)}) would have to run"
            " here; read it, then give --yes"
        )
    try:
        assessment = assess_settings(case.config, case.settings)
    except FedloomError as e:
        raise CannotTell(f"not checked: {e}") from None
    if assessment.refusals:
        raise BadInput(
            f"the policy of {case.file} refuses the federation's settings: "
            + " | ".join(objection.in_full for objection in assessment.refusals)
        )
    return f"the policy of {case.file} permits the federation's settings"


def _code_refused(case: Case, project: Path) -> str:
    """What the policy says of the app that the project sends, and of what its run imports, where it
    lists any by their sha256."""
    policy = case.config.policy
    if not policy.pins_code:
        return ""
    refused = code_refusals(policy, App.of_project(project), run_configuration(project))
    return " | ".join(refusal.in_full() for refusal in refused)


def _headers(config: SiteConfig) -> tuple[str, ...]:
    return input_columns(config.data, config.label)


def state_folder(case: Case) -> str:
    """Whether states can be written, and who else could read them."""
    folder = case.config.state
    try:
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryDirectory(prefix=".fedloom-check-", dir=existing) as scratch:
            (Path(scratch) / "written").write_bytes(b"?")
    except OSError as e:
        raise BadInput(
            f"the state folder {folder} cannot be written ({e.strerror}); let the SuperNode's user"
            " write there, or name another folder as state"
        ) from None
    free = shutil.disk_usage(existing).free
    if free < ROOM:
        raise BadInput(
            f"only {free / 1e9:.2f} GB are free for {folder}; make room for {ROOM / 1e9:g} GB"
        )
    summary = f"{folder} can be written, {free / 1e9:.1f} GB are free, it holds {_held(folder)}"
    if folder.exists() and folder.stat().st_mode & stat.S_IRWXO:
        summary += f"; warning: other users of this machine can look into it: chmod 700 {folder}"
    return summary


def _held(folder: Path) -> str:
    """The experiments in a state folder, with their numbers of states."""
    counts = {
        states.parent.name: len(SiteStore(states).names())
        for states in sorted(folder.glob("*/states"))
    }
    return ", ".join(f"{name} ({n} states)" for name, n in counts.items()) or "no experiment yet"


def device(case: Case) -> str:
    """Whether torch can use it."""
    return f"torch can use {check_device(case.config.device)}"


def own_port(case: Case) -> str:
    """Whether the SuperNode's port is free, or in use by that SuperNode itself."""
    port = case.config.port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the SuperNode does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as e:
            if e.errno != errno.EADDRINUSE:
                raise BadInput(
                    f"port {port} cannot be used here ({e.strerror}); state another port, above"
                    " 1023"
                ) from None
        else:
            return f"port {port} is free for the SuperNode"
    process, command = listener(port)
    if str(case.file.absolute()) in command or str(case.file.resolve()) in command:
        return f"port {port} is used by this site's own SuperNode (process {process})"
    who = f"process {process}: {command[:80]}" if process else "by whom is hidden from this user"
    raise BadInput(f"port {port} is taken ({who}); end it, or state another port in {case.file}")


def listener(port: int) -> tuple[int, str]:
    """Process id and command line of who listens on a port; (0, "") where that is not shown."""
    with suppress(psutil.Error):  # hidden from this user, or ended meanwhile
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if listening and connection.pid:
                return connection.pid, " ".join(psutil.Process(connection.pid).cmdline())
    return 0, ""


def versions(case: Case) -> str:
    """Whether Flower is the release that fedloom was measured with."""
    flwr, others = version("flwr"), f"fedloom {version('fedloom')}, torch {torch.__version__}"
    if flwr != FLWR:
        raise BadInput(
            f"flwr {flwr} is installed, but fedloom was measured with {FLWR} ({others});"
            f" pip install flwr=={FLWR}"
        )
    return f"flwr {flwr}, {others}"
