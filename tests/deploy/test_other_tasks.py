"""A deployment that predicts numbers: what its schema says, what sites agree on, what they keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedloom.deploy import apps
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.server.run import serve
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.errors import BadInput
from fedloom.record import At
from fedloom.serving.model import PersonalModel

NAMES = ("hospital-a", "hospital-b")
CONFIG = {
    "method": "fedper",
    "task": "regression(mean=[50], std=[3])",
    "model": "mlp(hidden=[4])",
    "rounds": 2,
    "sites": ",".join(NAMES),
    "protocol": "fedloom(also=none)",
}
SCHEMA = Schema(kind="table", shape=(3,), class_names=("target",), targets="numbers")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    files = []
    for i, name in enumerate(NAMES):
        folder = tmp_path / name
        folder.mkdir()
        x = np.random.default_rng(i).normal(size=(40, 3)).astype(np.float32)
        np.savez(folder / "rows.npz", x=x, y=np.rint(3 * x[:, 0] + 50))
        file = folder / "site.toml"
        file.write_text(f'name = "{name}"\ndata = "rows.npz"\nstate = "kept"\n')
        files.append(file)
    return files


def served(files: list[Path], out: Path, config: dict[str, Any], schema: Schema = SCHEMA) -> Any:
    config = {**config, "out": str(out)}
    local = LocalGrid(apps.client, len(files))
    for context, file in zip(local._contexts.values(), files, strict=True):
        context.node_config, context.run_config = {"site": str(file)}, config
    return serve(local, Settings.read(config), schema, poll=0.01)


def test_sites_predict_numbers_as_they_were_scored(files: list[Path], tmp_path: Path) -> None:
    result = served(files, tmp_path / "server", CONFIG)
    assert result.summary.metric == "rmse"
    received = result.records[-1].score(At("received", "test"))
    for cid, file in enumerate(files):
        site = SiteData(SiteConfig.read(file), Settings.read(CONFIG))
        personal = PersonalModel.load(file.parent / "kept" / "experiment" / "model")
        rows = site.divided.partition.clients[0].test
        x, y = np.asarray(site.source.x)[rows], np.asarray(site.source.y)[rows]
        error = personal.predict(x).numpy() - y
        assert np.sqrt((error**2).mean()) == pytest.approx(received.by_client("rmse")[cid])


def test_a_server_cannot_measure_what_sites_keep(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nobody sees the targets of all sites"):
        served(files, tmp_path / "server", {**CONFIG, "task": "regression"})


def test_a_schema_says_what_a_target_is(files: list[Path], tmp_path: Path) -> None:
    SCHEMA.write(tmp_path / "schema.toml")
    assert Schema.read(tmp_path / "schema.toml", "") == SCHEMA
    classes = Schema(kind="table", shape=(3,), class_names=("target",))
    assert SCHEMA.difference(classes) == "targets classes, not numbers"
    assert SCHEMA.digest != classes.digest
    data = files[0].parent / "rows.npz"
    assert Schema.of_data(data, targets="numbers") == SCHEMA
