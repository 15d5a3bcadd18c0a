"""Write a deployment's folder: a Flower project, and for each site what is handed to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fedloom.deploy.processes.children import FLWR
from fedloom.deploy.project.certificates import Authority, write_key_pair
from fedloom.deploy.project.folder import (
    SCHEMA,
    TLS_FILES,
    LinkConfig,
    Project,
    out_of,
    toml_value,
)
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.settings import AT_THE_SITES, NAME, Settings
from fedloom.errors import BadInput
from fedloom.extensions import source_of
from fedloom.files import write_atomic
from fedloom.policy import SiteFacts
from fedloom.policy.table import commented_table
from fedloom.runs.config import RunConfig

PORT, NODE_PORT = 9092, 9094
ENOUGH = 10**6
"""Rows of a site for which no rule about few rows speaks."""
LIMITS = ["most_body_mb", "most_reply_mb", "body_seconds", "connections", "connections_per_address"]
"""The guard's, of link.toml."""
SECTIONS = {
    "The federation": "experiment out sites class_names clients min_clients deadline patience"
    " lost_state most_rows most_rows_ratio most_norm keep_rounds",
    "Method and training": "imports method task model start start_without rounds participation"
    " epochs steps batch_size lr optimizer momentum weight_decay beta1 beta2 eps keep_state clip"
    " decay drop_last replacement server_optimizer server_lr server_beta1 server_beta2 server_tau"
    " seed",
    "Data, the same at every site": "split partition_seed normalize image_size encoder augment",
    "Evaluation": "protocol metrics eval_every early_stop",
    "Flower's own simulation, `flwr run .`; sites have no use for it": "simulated_data"
    " simulated_partition simulated_policy",
}
"""Keys of the run's configuration, in the order they are written; others follow."""
ELSEWHERE = {*AT_THE_SITES, "engine", "workers", "ray_address", "device", "run"}
"""Keys that a deployment has no use for, or that each site sets for itself."""
DESCRIPTIONS = {
    "imports": "modules with code of your own; those in this folder are sent to the sites",
    "start": "begin with a file's weights; the file lies under this path at every site too",
    "out": "the server's folder of this experiment: checkpoints and the shared model",
    "clients": "number of places; empty: one for each of the sites",
    "min_clients": "fewest answers that make a round count; the run begins with so many",
}
"""Of keys that mean something more special in a deployment than in other runs."""


def write_project(
    folder: Path,
    sites: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    tls: bool = True,
    ports: Sequence[int] = (),
    run: Mapping[str, Any] | None = None,
    schema: Schema | None = None,
) -> Project:
    """Write a project for these sites in a new or empty folder.

    `host` is the name or address by which sites reach the server, `ports` are those of the
    SuperNodes on their own machines, `run` has keys of the run's configuration. Files among its
    imports are copied into the project, with which Flower sends them to the sites. Without a
    `schema` one has to be written before the first run.
    """
    run = run or {}
    sources = [source_of(spec) for spec in run.get("imports", ())]
    names = ",".join(module for module, _ in sources)
    files = [file for _, file in sources if file is not None]
    config = _config(sites, {**run, "imports": names})
    config["model"] = model_for_sites(_read_again(config).run, schema)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; pick another folder, nothing was written")
    root = folder.absolute()
    texts = {
        "pyproject.toml": _pyproject(root.name, config, [file.name for file in files]),
        "LICENSE": LICENSE,
        ".gitignore": "/logs/\n/server/\n/sites/\n",
        "README.md": README.format(first=sites[0], host=host, port=port),
        "federation/__init__.py": PACKAGE,
        "federation/server_app.py": APP.format(what="server"),
        "federation/client_app.py": APP.format(what="client"),
        "server/link.toml": _link(host, port, tls),
        **{file.name: file.read_text(encoding="utf-8") for file in files},
    }
    for i, name in enumerate(sites):
        own = ports[i] if ports else NODE_PORT + i  # all different, for a trial on one machine
        texts[f"sites/{name}/site.toml"] = site_text(name, f"{host}:{port}", own, tls)
    for private in ("server", "sites"):
        (root / private).mkdir(mode=0o700, parents=True)
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    if schema is not None:
        for place in (root, *(root / "sites" / name for name in sites)):
            schema.write(place / SCHEMA)
    if tls:
        _write_certificates(root, sites, host)
    return Project.read(root)


def schema_for(settings: Settings, data: Path, label: str | None) -> Schema:
    """What an example of the data looks like as a run with these settings reads it."""
    from fedloom.runs.experiment import task_targets

    run = settings.run
    names, targets = settings.class_names or None, task_targets(run)
    return Schema.of_data(data, label, names, image_size=run.image_size, targets=targets)


WITH_BATCH_NORM = {
    "mlp": "mlp(norm=batch)",
    "fusion": "fusion(norm=batch)",
    "cnn4": "small_cnn(norm=batch)",
    "har_cnn": "mlp(norm=batch)",
}
"""Network that `auto` may stand for -> one for the same data, whose units no single row fires."""


def model_for_sites(run: RunConfig, schema: Schema | None) -> str:
    """The model that a project states: where `auto` would choose a network that sites refuse, as
    the policy's own rule says, one that they do not. Behind an encoder, what it makes of a row
    decides."""
    if run.model != "auto" or schema is None:
        return run.model
    from fedloom.policy.networks import gives_rows_away
    from fedloom.runs.encoder import form_of_inputs
    from fedloom.runs.experiment import default_model

    classes = len(schema.class_names)
    kind, shape = form_of_inputs(schema.kind, schema.shape, run.encoder)
    instead = WITH_BATCH_NORM.get(default_model(kind, shape), run.model)
    form = SiteFacts(
        rows=ENOUGH,
        smallest_class=ENOUGH,
        kind=kind,
        classes=classes,
        shape=shape,
        vocabulary=schema.vocabulary,
        targets=schema.targets,
        fields=() if run.encoder else schema.fields,
    )
    return instead if gives_rows_away(run, form) else run.model


def state_model(project: Project, schema: Schema) -> str:
    """Write into a project the model that its schema asks for; returns it, empty where the project
    stays as it is."""
    model = str(project.config.get("model", ""))
    wanted = model_for_sites(project.settings().run, schema)
    file = project.root / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    before, after = (f"\nmodel = {toml_value(name)}\n" for name in (model, wanted))
    if wanted == model or text.count(before) != 1:
        return ""
    write_atomic(file, text.replace(before, after))
    return wanted


def _config(sites: Sequence[str], run: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of `_sections` with its value, checked."""
    for name in sites:
        if not re.fullmatch(NAME, name) or list(sites).count(name) > 1:
            raise BadInput(
                f"site {name!r} will not do; names are letters, digits, '.', '_' and '-', each once"
            )
    if not sites:
        raise BadInput("a federation needs sites; name them, for instance hospital-a,hospital-b")
    experiment = run.get("experiment", "first")
    first = {
        "experiment": experiment,
        "out": out_of(experiment),
        "sites": ",".join(sites),
        "min_clients": min(2, len(sites)),
        "protocol": "cohort",
        "drop_last": True,  # a last batch of few rows tells of them, and sites refuse it
        **run,
    }
    settings = Settings.read(first)
    values = {**settings.run.model_dump(), **settings.model_dump(exclude={"run"})}
    values["clients"] = run.get("clients")  # where it is not stated, it follows from the sites
    return {key: values[key] for keys in _sections().values() for key in keys}


def _read_again(config: Mapping[str, Any]) -> Settings:
    """The settings of a configuration, in which an empty text leaves a key unset."""
    return Settings.read({key: "" if value is None else value for key, value in config.items()})


def _sections() -> dict[str, list[str]]:
    sections = {title: keys.split() for title, keys in SECTIONS.items()}
    placed = ELSEWHERE.union(*sections.values())
    rest = [key for key in (*Settings.model_fields, *RunConfig.model_fields) if key not in placed]
    return {**sections, "Other": rest} if rest else sections


def _pyproject(folder: str, config: Mapping[str, Any], files: Sequence[str]) -> str:
    sent = json.dumps(["/LICENSE", "federation/**/*.py", *(f"/{name}" for name in files)])
    lines = [PYPROJECT.format(name=_flower_name(folder), sent=sent, flower=FLWR)]
    for title, keys in _sections().items():
        lines.append(f"\n# ---- {title}")
        for key in keys:
            # Flower lets a run override only what stands here, so what is unset stands as "".
            lines.append(f"# {_described(key)}")
            lines.append(f"{key.replace('_', '-')} = {toml_value(config[key])}")
    return "\n".join(lines) + "\n"


def _described(key: str) -> str:
    if key in DESCRIPTIONS:
        return DESCRIPTIONS[key]
    fields = Settings.model_fields if key in Settings.model_fields else RunConfig.model_fields
    return fields[key].description or key


def _flower_name(folder: str) -> str:
    """Flower wants letters, digits and hyphens, 32 at most, a letter first."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", folder).strip("-")[:24].rstrip("-")
    return plain if plain[:1].isalpha() else f"fedloom-{plain}".rstrip("-")


def _link(host: str, port: int, tls: bool) -> str:
    local = _is_loopback(host)
    files = zip(TLS_FILES, ("ca.crt", "server.crt", "server.key"), strict=True) if tls else ()
    return "\n".join(
        [
            "# The SuperLink. Paths are relative to this file.",
            "# bind: 127.0.0.1 is this machine alone, 0.0.0.0 every network it is in. Another",
            "# address has to stand in the certificate.",
            f"bind = {toml_value('127.0.0.1' if local else '0.0.0.0')}",
            f"port = {port}",
            *(f"{key} = {toml_value(name)}" for key, name in files),
            "# Other names by which sites call the server, beside those in its certificate.",
            f"hosts = {toml_value(host)}",
            "",
            "# What the guard permits; these are the defaults.",
            *map(_commented_limit, LIMITS),
            "",
        ]
    )


def _commented_limit(key: str) -> str:
    """A limit of the guard with its default, for whoever wants another one."""
    field = LinkConfig.model_fields[key]
    return f"# {key} = {toml_value(field.default)}  # {field.description}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def next_port(sites: Path) -> int:
    """One that no other site of the project was given, for a trial on one machine."""
    return NODE_PORT + sum(1 for _ in sites.glob("*/site.toml"))


def site_text(name: str, superlink: str, port: int, tls: bool) -> str:
    """The file that a site is handed."""
    secure = 'ca = "ca.crt"\nkey = "site.key"\n' if tls else ""
    keys = SITE.format(name=toml_value(name), superlink=superlink, port=port)
    return keys + secure + commented_table()


def _write_certificates(root: Path, sites: Iterable[str], host: str) -> None:
    server, authority = root / "server", Authority(root.name)
    authority.save(server / "ca.crt", server / "ca.key")
    authority.issue([host], server / "server.crt", server / "server.key")
    for name in sites:
        folder = root / "sites" / name
        write_key_pair(folder / "site.key", server / "keys" / f"{name}.pub", name)
        (folder / "ca.crt").write_bytes((server / "ca.crt").read_bytes())


PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A federation of sites that keep their data, run by fedloom on Flower"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["fedloom[flower]", "flwr>={flower},<={flower}"]

[tool.setuptools]
packages = ["federation"]

[tool.flwr.app]
publisher = "fedloom"
fab-format-version = 1
flwr-version-target = "{flower}"
# Nothing else of this folder is sent to the sites.
fab-include = {sent}

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

# What all sites agree on. "" leaves a key to the method or to what the line above it says.
# One run may differ: fedloom deploy run . rounds=50 lr=0.01
[tool.flwr.app.config]"""

LICENSE = """\
The files of this folder that `fedloom deploy init` wrote may be used under the Apache License 2.0,
https://www.apache.org/licenses/LICENSE-2.0. Put another license here for code of your own.
"""

PACKAGE = '''\
"""What is sent to the sites. Import modules with methods or models of your own here."""
'''

APP = '''\
"""The {what}'s side, as Flower finds it."""

from fedloom.deploy.apps import {what} as app

__all__ = ["app"]
'''

SITE = """\
# One site. Paths are relative to this file.

# What the federation calls this site.
name = {name}

# Your data, which stays here: a .npz file with arrays x and y, a .csv or .parquet table, or a
# folder with one folder of images per class.
data = "data.npz"
# Label column of a table, if it is not label, target or y:
# label = "outcome"
# Units of columns whose header does not state them, if they are not those of the schema:
# units = {{ dose = "mg" }}

# What the data of all sites must look like, agreed on beforehand; `deploy check` compares.
schema_file = "schema.toml"

# What stays here: this site's states, and its own model in state/EXPERIMENT/model.
state = "state"
# What it may take on the disk:
# most_disk = "10 GB"

# cpu, cuda, cuda:1, mps ...
device = "cpu"

# The server, and a port of this machine that is free; nobody else needs to reach it.
superlink = "{superlink}"
port = {port}
"""

README = """\
# A federation

Made by `fedloom deploy init`. What each file is, and how to run it as a service: docs/deploy.md of
fedloom.

On the server, in this folder:

    fedloom deploy schema . example.csv   # once: what the data of all sites must look like
    fedloom deploy link .          # stays; sites reach it at {host}:{port}
    fedloom deploy run .           # when sites are connected; again after a crash: it goes on

At each site, with the folder `sites/NAME` that was handed to it:

    fedloom deploy check {first}/site.toml
    fedloom deploy node {first}/site.toml       # stays
    fedloom deploy approve {first}/site.toml    # after `deploy run`: look at what is asked, agree

Afterwards a site has its own model in `state/first/model`, the server the shared part in
`server/runs/first/run/checkpoints`.

Keep `server/ca.key` off the network; delete `sites/` here once it is handed out.
"""
