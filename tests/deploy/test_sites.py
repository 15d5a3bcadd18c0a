"""A deployment without a network: sites with their own files, a server that never sees a row."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from sites import digits_schema, gathered, write_rows

from fedloom.deploy import apps
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.server.run import serve
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.engines.inline import Inline
from fedloom.errors import BadInput, FedloomError
from fedloom.launch.start import Result, start
from fedloom.record import At
from fedloom.runs.experiment import Experiment
from fedloom.serving.model import PersonalModel
from fedloom.version import __version__

NAMES = ("hospital-a", "hospital-b", "hospital-c")
KINDS = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9, 0))
CLASSES = ",".join("0123456789")
CONFIG = {
    "method": "fedper",
    "model": "mlp(hidden=[16])",
    "rounds": 2,
    "batch-size": 16,
    "sites": ",".join(NAMES),
    "class-names": CLASSES,
}


def write_sites(root: Path) -> list[Path]:
    """One site.toml and one .npz for each, with unlike classes."""
    files = []
    for name, kinds in zip(NAMES, KINDS, strict=True):
        folder = root / name
        folder.mkdir()
        write_rows(folder / "rows.npz", kinds)
        file = folder / "site.toml"
        file.write_text(f'name = "{name}"\ndata = "rows.npz"\nstate = "kept"\n')
        files.append(file)
    return files


def grid(files: list[Path], config: dict[str, Any]) -> LocalGrid:
    """Every site a node."""
    local = LocalGrid(apps.client, len(files))
    for context, file in zip(local._contexts.values(), files, strict=True):
        context.node_config, context.run_config = {"site": str(file)}, config
    return local


def deployed(files: list[Path], out: Path, **changes: Any) -> Result:
    config = {**CONFIG, "out": str(out), **changes}
    return serve(grid(files, config), Settings.read(config), digits_schema(), poll=0.01)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return write_sites(tmp_path)


@pytest.mark.parametrize(
    ("method", "normalize"),
    [("fedper", "auto"), ("fedpac", "auto"), ("fedavg + dbe", "auto"), ("fedper", "channel")],
)
def test_sites_with_their_own_files_give_the_bytes_of_one_machine(
    method: str, normalize: str, files: list[Path], tmp_path: Path
) -> None:
    result = deployed(files, tmp_path / "server", method=method, normalize=normalize)
    settings = Settings.read({**CONFIG, "method": method, "normalize": normalize})
    experiment = Experiment.build(settings.run, data=gathered(files, settings))
    reference = start(experiment, Inline())
    assert result.summary.state_sha256 == reference.summary.state_sha256
    assert [r.scores for r in result.records] == [r.scores for r in reference.records]


@pytest.mark.parametrize("normalize", ["half", "channel"])
def test_every_site_ends_with_a_model_that_predicts_as_it_was_scored(
    normalize: str, files: list[Path], tmp_path: Path
) -> None:
    """Scored at the site as received in the last round; predicted from the saved files alone."""
    changes = {"rounds": 8, "protocol": "fedloom", "normalize": normalize}
    result = deployed(files, tmp_path / "server", **changes)
    received = result.records[-1].score(At("received", "test"))
    assert received is not None
    for cid, file in enumerate(files):
        settings = Settings.read({**CONFIG, "method": "fedper", "normalize": normalize})
        site = SiteData(SiteConfig.read(file), settings)
        personal = PersonalModel.load(file.parent / "kept" / "experiment" / "model")
        rows = site.divided.partition.clients[0].test
        x, y = np.asarray(site.source.x)[rows], np.asarray(site.source.y)[rows]
        accuracy = (personal.predict(x).argmax(1).numpy() == y).mean()
        assert accuracy == pytest.approx(received.by_client()[cid])
        assert personal.card.class_names == list("0123456789")
        pixels = np.asarray(site.source.x)[site.divided.partition.clients[0].train] / 255
        expected = 0.5 if normalize == "half" else pixels.mean()
        assert personal.card.mean == pytest.approx([expected])
    assert (tmp_path / "server" / "run" / "summary.json").exists()


def test_a_saved_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no personal model in"):
        PersonalModel.load(tmp_path)


def test_the_server_never_sees_a_row_nor_how_many_before_training(files: list[Path]) -> None:
    settings = Settings.read(CONFIG)
    hello = SiteData(SiteConfig.read(files[0]), settings).hello()
    assert set(hello) == {
        "site", "shape", "kind", "class_names", "vocabulary", "schema", "fedloom", "torch",
    }  # fmt: skip
    assert hello["site"] == "hospital-a"
    assert hello["class_names"] == list("0123456789")


def test_sites_with_other_classes_than_the_schema_are_refused_by_name(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without class-names and a schema of its own, a site counts the classes in its data."""
    digits_schema().write(files[0].parent / "schema.toml")
    with open(files[0], "a") as site:
        site.write('schema_file = "schema.toml"\n')
    config = {**CONFIG, "class-names": ""}
    with caplog.at_level(logging.WARNING, "fedloom"):
        result = deployed(files, tmp_path / "server", **config, **{"min-clients": 1})
    assert result.records[0].cohort == (0,)
    assert "site 'hospital-b' has class names ['3', '4', '5', '6'], and the schema" in caplog.text


SCHEMA = Schema(kind="image", shape=(1, 8, 8), class_names=("a", "b"), vocabulary=0, columns=())


def hello(name: str, **changes: Any) -> dict[str, Any]:
    data = {"shape": [1, 8, 8], "kind": "image", "class_names": ["a", "b"]}
    versions = {"fedloom": __version__, "torch": "0"}
    return {"site": name, **data, "vocabulary": 0, "schema": SCHEMA.digest, **versions, **changes}


def test_places_are_kept_over_restarts_and_strangers_refused(tmp_path: Path) -> None:
    settings = Settings.read({"clients": 2})
    registry = SiteRegistry(tmp_path / "sites.json", settings, SCHEMA)
    assert [registry.admit(hello("b")), registry.admit(hello("a")), registry.admit(hello("b"))] == [
        0,
        1,
        0,
    ]
    assert not (tmp_path / "sites.json").exists()  # a mistake of the first site is not for ever
    registry.write()
    again = SiteRegistry(tmp_path / "sites.json", settings, SCHEMA)
    assert again.admit(hello("a")) == 1
    assert again.remote_data() == registry.remote_data()
    with pytest.raises(BadInput, match="site 'c' comes when all 2 places are taken"):
        again.admit(hello("c"))
    with pytest.raises(BadInput, match=r"site 'a' has shape \[3, 8, 8\], and the schema"):
        again.admit(hello("a", shape=[3, 8, 8]))
    named = SiteRegistry(tmp_path / "other.json", Settings.read({"sites": "a,b"}), SCHEMA)
    assert named.admit(hello("b")) == 1
    with pytest.raises(BadInput, match="site 'c' is not among the sites"):
        named.admit(hello("c"))


@pytest.mark.parametrize("changes", [{"class_names": 5}, {"shape": []}, {"site": "../x"}])
def test_what_a_site_says_is_checked(changes: dict[str, Any], tmp_path: Path) -> None:
    registry = SiteRegistry(tmp_path / "sites.json", Settings.read({"clients": 2}), SCHEMA)
    with pytest.raises(BadInput, match="will not do"):
        registry.admit(hello("a", **changes))


def test_a_site_that_is_named_later_gets_the_next_place(tmp_path: Path) -> None:
    first = SiteRegistry(
        tmp_path / "sites.json", Settings.read({"clients": 3, "sites": "a,b"}), SCHEMA
    )
    first.admit(hello("b"))
    first.write()
    later = SiteRegistry(
        tmp_path / "sites.json", Settings.read({"clients": 3, "sites": "a,b,c"}), SCHEMA
    )
    assert [later.admit(hello(name)) for name in "abc"] == [0, 1, 2]


def test_an_experiment_does_not_go_on_with_other_settings(
    files: list[Path], tmp_path: Path
) -> None:
    deployed(files, tmp_path / "server")
    with pytest.raises(BadInput, match=r"holds a run with lr = 0\.05, not 0\.5; give it another"):
        deployed(files, tmp_path / "server", lr=0.5)


def test_a_damaged_registry_is_named(tmp_path: Path) -> None:
    (tmp_path / "sites.json").write_text("{")
    with pytest.raises(FedloomError, match=r"sites\.json is damaged"):
        SiteRegistry(tmp_path / "sites.json", Settings.read({"clients": 2}), SCHEMA)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"clients": 2, "rouns": 3}, "unknown key 'rouns'; did you mean 'rounds'"),
        ({"clients": 2, "partition": "iid"}, "partition has no meaning in a deployment"),
        ({"clients": 2, "label": "sick"}, "label has no meaning in a deployment"),
        ({"clients": 2, "engine": "pool"}, "engine has no meaning in a deployment"),
        ({}, "say in clients how many places there are, or name the sites"),
        ({"clients": 1, "sites": "a,b"}, "clients = 1 and 2 sites"),
        ({"clients": 2, "deadline": 0}, "deadline = 0 will not do: it should be greater than 0"),
        ({"clients": 2, "experiment": "a/b"}, "experiment = 'a/b' will not do"),
        ({"clients": 2, "experiment": ".."}, "experiment = '..' will not do"),
        ({"clients": 2, "lost-state": "forget"}, "lost_state = 'forget' will not do"),
    ],
)
def test_bad_settings_are_one_sentence(configuration: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("(", r"\(")):
        Settings.read(configuration)


def test_an_ended_federation_is_not_trained_again(files: list[Path], tmp_path: Path) -> None:
    first = deployed(files, tmp_path / "server")
    lines = (tmp_path / "server" / "run" / "metrics.jsonl").read_text()
    again = deployed(files, tmp_path / "server")
    assert (tmp_path / "server" / "run" / "metrics.jsonl").read_text() == lines
    assert again.summary.state_sha256 == first.summary.state_sha256
    assert json.loads((tmp_path / "server" / "sites.json").read_text())["sites"] == {
        name: cid for cid, name in enumerate(NAMES)
    }


def test_a_server_needs_a_folder(files: list[Path]) -> None:
    with pytest.raises(BadInput, match="needs out = a folder on the server"):
        serve(grid(files, CONFIG), Settings.read(CONFIG), digits_schema())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'a'", "data = .* will not do: field required"),
        ("name = 'a'\nstate = 's'\ndata = 'd'\nspeed = 3", "speed = 3 will not do"),
        ("name = ", "is not valid TOML"),
    ],
)
def test_a_bad_site_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        SiteConfig.read(tmp_path / "site.toml")


def test_a_node_without_a_site_file_says_so(files: list[Path], tmp_path: Path) -> None:
    config = {**CONFIG, "out": str(tmp_path / "server"), "patience": 0.05}
    local = grid(files, config)
    for context in local._contexts.values():
        context.node_config = {}
    with pytest.raises(FedloomError, match="0 sites take part"):
        serve(local, Settings.read(config), digits_schema(), poll=0.01)
