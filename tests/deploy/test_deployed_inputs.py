"""A deployment of several inputs, some of unlike length: schema, introduction, site, policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedloom.deploy import apps
from fedloom.deploy.project.new import model_for_sites
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.server.run import serve
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData, introduction
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.errors import BadInput
from fedloom.policy import Policy, facts_of, refusals
from fedloom.record import At
from fedloom.runs.config import RunConfig
from fedloom.serving.model import PersonalModel

NAMES = ("hospital-a", "hospital-b")
CONFIG = {
    "method": "fedper",
    "model": "fusion(norm=batch)",
    "rounds": 2,
    "sites": ",".join(NAMES),
    "protocol": "fedloom(also=none)",
}


def write_rows(file: Path, seed: int, positions: int, columns: int = 3) -> None:
    """Series of up to so many positions beside a table."""
    rng, y = np.random.default_rng(seed), np.arange(40) % 2
    lengths = rng.integers(2, positions + 1, 40)
    lengths[0] = positions
    pulse = rng.normal(size=(40, positions, 2)) + y[:, None, None]
    table = rng.normal(size=(40, columns)) + y[:, None]
    np.savez(file, pulse=pulse, pulse_lengths=lengths, table=table, y=y)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The rows of the second site are shorter than those of the first."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    files = []
    for i, name in enumerate(NAMES):
        folder = tmp_path / name
        folder.mkdir()
        write_rows(folder / "rows.npz", i, positions=12 - 3 * i)
        file = folder / "site.toml"
        file.write_text(
            f'name = "{name}"\ndata = "rows.npz"\nstate = "kept"\nschema_file = "schema.toml"\n'
        )
        files.append(file)
    schema = Schema.of_data(files[0].parent / "rows.npz")
    for file in files:
        schema.write(file.parent / "schema.toml")
    return files


def schema_of(files: list[Path]) -> Schema:
    return Schema.read(files[0].parent / "schema.toml", "")


def test_sites_are_filled_up_to_the_schema_and_keep_models(
    files: list[Path], tmp_path: Path
) -> None:
    config: dict[str, Any] = {**CONFIG, "out": str(tmp_path / "server")}
    local = LocalGrid(apps.client, len(files))
    for context, file in zip(local._contexts.values(), files, strict=True):
        context.node_config, context.run_config = {"site": str(file)}, config
    result = serve(local, Settings.read(config), schema_of(files), poll=0.01)
    received = result.records[-1].score(At("received", "test")).by_client("accuracy")
    for cid, file in enumerate(files):
        site = SiteData(SiteConfig.read(file), Settings.read(CONFIG))
        assert site.source.fields == schema_of(files).fields
        personal = PersonalModel.load(file.parent / "kept" / "experiment" / "model")
        rows = site.divided.partition.clients[0].test
        prediction = personal.predict(np.asarray(site.source.x)[rows])
        right = prediction.argmax(1).numpy() == np.asarray(site.source.y)[rows]
        assert right.mean() == pytest.approx(received[cid])


def test_a_schema_has_the_inputs_and_tells_others(files: list[Path], tmp_path: Path) -> None:
    schema = schema_of(files)
    assert schema == Schema.of_data(files[0].parent / "rows.npz")
    assert model_for_sites(Settings.read({"sites": "a,b"}).run, schema) == "fusion(norm=batch)"
    other = Schema.of_data(files[1].parent / "rows.npz")
    assert schema.difference(other) == (
        "inputs (pulse: signal [9, 2], up to 9 positions; table: table [3]), not"
        " (pulse: signal [12, 2], up to 12 positions; table: table [3])"
    )
    registry = SiteRegistry(tmp_path / "sites.json", Settings.read(CONFIG), schema)
    with pytest.raises(BadInput, match=r"site 'hospital-b' has inputs \(pulse: signal \[9, 2\]"):
        registry.admit(introduction("hospital-b", other))
    assert registry.admit(introduction("hospital-a", schema)) == 0
    for wrong in (3, [3], ["{"], ['{"name": "a"}'], ['{"kind": "odd"}']):
        with pytest.raises(BadInput, match="fields"):
            registry.admit({**introduction("hospital-a", schema), "fields": wrong})


def test_a_site_with_other_inputs_is_told_so(files: list[Path]) -> None:
    write_rows(files[1].parent / "rows.npz", 1, positions=9, columns=4)
    site = SiteData(SiteConfig.read(files[1]), Settings.read(CONFIG))
    with pytest.raises(BadInput, match=r"input 'table' is \(table: table \[4\]\), not"):
        _ = site.schema


def test_a_policy_knows_the_inputs(files: list[Path]) -> None:
    """Units that see a whole row, and words among several inputs."""
    facts = facts_of(SiteData(SiteConfig.read(files[0]), Settings.read(CONFIG)).divided)

    def rules(model: str, **changes: Any) -> set[str]:
        keys = {"method": "fedavg", "model": model, "clients": 2}
        run = RunConfig.checked({**keys, "batch_size": 10, "drop_last": True})
        judged = refusals(Policy.checked(), run, replace(facts, **changes))
        return {refusal.rule for refusal in judged} & {"dense_layers", "words", "most_parameters"}

    assert rules("fusion(norm=batch)") == set()
    assert rules("auto") == {"dense_layers"}
    assert rules("fusion(width=100000, norm=batch)") == {"most_parameters"}
    short = replace(facts.fields[0], shape=(4, 2))
    assert rules("fusion(norm=batch)", fields=(short, facts.fields[1])) == {"dense_layers"}
    words = replace(facts.fields[0], kind="text", shape=(12,), vocabulary=50)
    assert "words" in rules("fusion(norm=batch)", fields=(words, facts.fields[1]))
