"""A site that comes when a deployment has ended: from the server's folder alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from sites import gathered

import fedloom
from fedloom import BadInput, UnknownName
from fedloom.deploy import apps
from fedloom.deploy.project.schema import Column, Schema
from fedloom.deploy.server.run import serve
from fedloom.deploy.settings import Settings
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.experiment import Experiment

NAMES = ("hospital-a", "hospital-b")
CONFIG = {
    "method": "fedper",
    "model": "mlp(hidden=[4])",
    "rounds": 2,
    "sites": ",".join(NAMES),
    "class-names": "ill,well",
}
SCHEMA = Schema(
    kind="table",
    shape=(2,),
    class_names=("ill", "well"),
    columns=(Column(name="age", unit="years"), Column(name="dose", unit="mg")),
)
HANDED_OVER = ("config.json", "versions.json", "partition.json", "summary.json", "metrics.jsonl")


def patients(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(seed, 1, size=(40, 2)), columns=["age [years]", "dose [mg]"])
    return frame.assign(label=np.where(frame["age [years]"] > seed, "ill", "well"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server that has ended, its two sites, and rows of a third."""
    place = tmp_path_factory.mktemp("study")
    files = []
    for i, name in enumerate(NAMES):
        (place / name).mkdir()
        patients(i).to_csv(place / name / "rows.csv", index=False)
        file = place / name / "site.toml"
        file.write_text(f'name = "{name}"\ndata = "rows.csv"\nstate = "kept"\n')
        files.append(file)
    config = {**CONFIG, "out": str(place / "server")}
    local = LocalGrid(apps.client, len(files))
    for context, file in zip(local._contexts.values(), files, strict=True):
        context.node_config, context.run_config = {"site": str(file)}, config
    serve(local, Settings.read(config), SCHEMA, poll=0.01)
    rows = patients(2)
    rows.columns = pd.Index(["age", "dose [mg]", "label"])
    rows[["dose [mg]", "label", "age"]].to_csv(place / "late.csv", index=False)
    return place


def test_a_site_joins_from_the_part_of_the_server_s_folder_that_it_needs(
    place: Path, tmp_path: Path
) -> None:
    """It gets the very model that it would get where all data were in one place."""
    run = tmp_path / "handed over"
    run.mkdir()
    for name in HANDED_OVER:
        shutil.copy(place / "server" / "run" / name, run / name)
    shutil.copytree(place / "server" / "run" / "checkpoints", run / "checkpoints")
    joined = fedloom.open(run).adapt(place / "late.csv", epochs=2)
    card = joined.model.card
    assert card.columns == ["age", "dose [mg]"]
    assert card.mean[0] == pytest.approx(2, abs=0.5)  # by its own rows, as every site

    settings = Settings.read(CONFIG)
    data = gathered([place / name / "site.toml" for name in NAMES], settings)
    data = type(data)(data.source.normalized("site"), data.partition)
    config = settings.run.changed(engine="inline", data="<python object>")
    simulated = start(Experiment.build(config, data=data), Inline())
    assert simulated.adapt(place / "late.csv", inputs="age, dose [mg]", epochs=2).adapted == (
        joined.adapted
    )


def test_a_late_site_s_data_is_what_was_agreed_on(place: Path, tmp_path: Path) -> None:
    run, file = fedloom.open(place / "server" / "run"), tmp_path / "late.csv"
    patients(2).drop(columns="dose [mg]").to_csv(file, index=False)
    with pytest.raises(BadInput, match="has no inputs column 'dose'"):
        run.adapt(file)
    patients(2).replace("ill", "dead").to_csv(file, index=False)
    with pytest.raises(UnknownName, match="that the run does not have: 'dead'"):
        run.adapt(file)
    with pytest.raises(BadInput, match="models of this run are at their sites"):
        run.client(0)


def test_a_form_that_was_altered_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "server" / "run", tmp_path / "run")
    file = tmp_path / "run" / "partition.json"
    file.write_text(file.read_text().replace('["ill", "well"]', '["well", "ill"]'))
    with pytest.raises(BadInput, match="the form of the sites' data was altered"):
        fedloom.open(tmp_path / "run")
