"""The schema of a project: written from an example, compared with each site's own table."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedloom.data import RemoteData
from fedloom.data.local import input_columns
from fedloom.data.source import Kind
from fedloom.deploy.check import CheckResult, check
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.new import write_project
from fedloom.deploy.project.schema import Column, Schema
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput
from fedloom.policy import Policy, SiteFacts, refusals
from fedloom.runs import encoder
from fedloom.runs.experiment import Experiment
from helpers import fedloom

HEADER = ("age [years]", "dose [mg]", "sex")
ROWS = [(61, 1.5, 0, "ill"), (50, 2.5, 1, "well"), (34, 0.5, 0, "well"), (70, 3.5, 1, "ill")] * 3


def write_table(file: Path, header: tuple[str, ...], order: tuple[int, ...] = (0, 1, 2)) -> Path:
    lines = [",".join([*(header[i] for i in order), "label"])]
    lines += [",".join(map(str, [*(row[i] for i in order), row[3]])) for row in ROWS]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    example = write_table(tmp_path / "example.csv", HEADER)
    project = write_project(tmp_path / "study", ["a", "b"], tls=False)
    done = fedloom("deploy", "schema", project.root, example)
    assert done.code == 0, done.err
    return project


def site(project: Project, header: tuple[str, ...], order: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Site a with such a table."""
    file = project.site("a")
    write_table(file.parent / "data.csv", header, order)
    file.write_text(file.read_text().replace("data.npz", "data.csv"))
    return file


def checked(file: Path) -> CheckResult:
    return next(result for result in check(file) if result.subject == "schema")


def test_a_schema_is_written_from_an_example_and_copied_to_the_sites(project: Project) -> None:
    schema = project.schema()
    assert schema.columns == (
        Column(name="age", unit="years"),
        Column(name="dose", unit="mg"),
        Column(name="sex", unit=""),
    )
    assert (schema.kind, schema.shape, schema.class_names) == ("table", (3,), ("ill", "well"))
    assert Schema.read(project.root / "sites" / "b" / "schema.toml", "") == schema


@pytest.mark.parametrize(
    ("kind", "shape", "stated"),
    [
        ("table", (3,), "mlp(norm=batch)"),
        ("image", (1, 8, 8), "mlp(norm=batch)"),
        ("image", (1, 28, 28), "small_cnn(norm=batch)"),  # of which cnn4 makes 1,024 features
        ("image", (1, 64, 64), "small_cnn(norm=batch)"),
        ("image", (3, 32, 32), "auto"),
        ("image", (3, 64, 64), "auto"),
        ("signal", (9, 128), "mlp(norm=batch)"),  # of which har_cnn makes 1,664 features
        ("signal", (3, 20), "mlp(norm=batch)"),  # too short for har_cnn
        ("signal", (20, 128), "auto"),
    ],
)
def test_the_settings_of_a_new_project_are_permitted_by_default(
    kind: Kind, shape: tuple[int, ...], stated: str, tmp_path: Path
) -> None:
    """Where `auto` is a network that sites refuse, another one is stated; all other keys have
    their defaults."""
    schema = Schema(kind=kind, shape=shape, class_names=("no", "yes"))
    run = write_project(tmp_path / "study", ["a", "b"], tls=False, schema=schema).settings().run
    assert run.model == stated
    facts = SiteFacts(rows=50, smallest_class=1, kind=kind, classes=2, shape=shape, test_rows=16)
    assert refusals(Policy.checked(), run, facts) == []
    source = RemoteData(2, shape, ("no", "yes"), kind)
    assert Experiment.build(run.changed(engine="flower"), data=source).program.nets


def test_the_schema_command_states_it_too(project: Project) -> None:
    assert Project.read(project.root).settings().run.model == "mlp(norm=batch)"


@pytest.mark.parametrize(
    ("run", "stated"),
    [
        ({"model": "mlp(hidden=[])"}, "mlp(hidden=[])"),
        ({"method": "lg_fedavg"}, "auto"),  # which keeps the layers that see rows
    ],
)
def test_only_a_model_that_is_left_to_the_data_and_refused_is_replaced(
    run: dict[str, str], stated: str, tmp_path: Path
) -> None:
    schema = Schema(kind="table", shape=(3,), class_names=("no", "yes"))
    new = write_project(tmp_path / "study", ["a", "b"], tls=False, run=run, schema=schema)
    assert new.settings().run.model == stated


def test_without_a_schema_no_run_is_submitted(tmp_path: Path) -> None:
    bare = write_project(tmp_path / "bare", ["a", "b"], tls=False)
    with pytest.raises(BadInput, match=r"write it with `fedloom deploy schema .* EXAMPLE.csv`"):
        bare.schema()


def test_a_table_as_agreed_passes(project: Project) -> None:
    result = checked(site(project, HEADER))
    assert result.ok, result.message
    assert "3 columns in their order" in result.message


def test_units_that_a_table_does_not_state_are_pointed_at(project: Project) -> None:
    result = checked(site(project, ("age", "dose", "sex")))
    assert result.ok, result.message
    assert "see that age is in 'years', and so on for 2 columns" in result.message


@pytest.mark.parametrize(
    ("header", "order", "why"),
    [
        (HEADER, (1, 0, 2), "in another order: column 1 is 'dose', not 'age'"),
        (("age [months]", "dose [mg]", "sex"), (0, 1, 2), "column age [months], not age [years]"),
        (("age", "dose", "height"), (0, 1, 2), "other columns: it lacks ['sex']"),
    ],
)
def test_other_columns_are_told_by_check_and_keep_a_site_from_answering(
    project: Project, header: tuple[str, ...], order: tuple[int, ...], why: str
) -> None:
    """Permuted columns passed before, and cost three percent of accuracy."""
    file = site(project, header, order)
    result = checked(file)
    assert result.ok is False
    assert why in result.message
    own = SiteData(SiteConfig.read(file), Settings.read({"sites": "a,b"}))
    with pytest.raises(BadInput, match="put the data right, or agree on another schema"):
        own.hello()
    with pytest.raises(BadInput, match="put the data right, or agree on another schema"):
        own.node()


def test_a_site_without_the_schema_states_what_its_data_is(project: Project) -> None:
    """The server compares the digest, whatever a site compares itself."""
    file = site(project, HEADER, (1, 0, 2))
    file.write_text(file.read_text().replace("schema_file", "# schema_file"))
    own = SiteData(SiteConfig.read(file), Settings.read({"sites": "a,b"}))
    assert own.hello()["schema"] != project.schema().digest
    assert checked(file).ok is None


@pytest.mark.parametrize("size", [None, 48])
def test_a_schema_is_of_the_rows_as_a_site_has_them_also_with_an_encoder(
    size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator knows images; what the encoder makes of them follows, at both ends."""
    import numpy as np
    from PIL import Image

    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoder, "pretrained_weights", lambda name: (None, "drawn"))
    run = {"encoder": "efficientnet_lite0/stage4", "image_size": size}
    study = write_project(tmp_path / "study", ["a", "b"], tls=False, run=run)
    file = study.site("a")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    for i, image in enumerate(pixels):
        place = file.parent / "scans" / ("ill", "well")[i % 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    file.write_text(file.read_text().replace("data.npz", "scans"))
    done = fedloom("deploy", "schema", study.root, file.parent / "scans")
    assert done.code == 0, done.err
    side = size or 32
    assert study.schema().shape == (3, side, side)
    settings = Project.read(study.root).settings()
    (result,) = [r for r in check(file, settings) if r.subject == "schema"]
    assert result.ok, result.message
    own = SiteData(SiteConfig.read(file), settings)
    hello = own.hello()
    assert hello["shape"] == [3, side, side]
    registry = SiteRegistry(tmp_path / "sites.json", settings, study.schema())
    assert registry.admit(hello) == 0
    inputs = registry.remote_data()
    assert (inputs.shape, inputs.kind) == (own.source.shape, own.source.kind)
    assert inputs.shape != (3, side, side)


def test_an_input_that_no_machine_could_hold_is_refused(project: Project) -> None:
    text = project.schema_file.read_text().replace("shape = [3]", "shape = [200000000000]")
    project.schema_file.write_text(text)
    with pytest.raises(BadInput, match="an input has 1 to 100000000 numbers"):
        project.schema()


def test_columns_come_from_the_head_of_a_table(tmp_path: Path) -> None:
    assert input_columns(write_table(tmp_path / "t.csv", HEADER)) == HEADER
    assert input_columns(tmp_path / "t.csv", label="sex") == (*HEADER[:2], "label")
    assert input_columns(tmp_path) == ()
