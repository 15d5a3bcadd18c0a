"""Where settings come from, which wins, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fedloom import extensions
from fedloom.core.phase import Opt
from fedloom.core.protocol import PROTOCOLS
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.settings import OPT_KEYS, SERVER_KEYS
from fedloom.errors import BadInput
from fedloom.expression import literal
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment


def test_flags_win_over_overrides_and_those_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('method = "fedper"\nrounds = 1\nlr = 0.1\nclients = 3\n')
    flags = {"rounds": 3, "seed": None, "clients": None}
    made = RunConfig.read(file, ["rounds=2", "lr=0.2"], flags)
    assert (made.method, made.rounds, made.lr, made.clients) == ("fedper", 3, 0.2, 3)
    assert made.seed == 0  # a flag that was not given leaves the default


def test_a_protocol_written_as_a_table_of_the_file_is_refused_with_its_expression(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    file.write_text('method = "fedper"\n[protocol]\nmoment = "received"\n')
    with pytest.raises(
        BadInput, match=r"write for instance protocol = 'fedpac\(moment=received\)'"
    ):
        RunConfig.read(file, [], {})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("rounds=7", "rounds", 7),
        ("batch-size = 5", "batch_size", 5),
        ("lr=1e-3", "lr", 0.001),
        ("drop_last=true", "drop_last", True),
        ("clients=none", "clients", None),
        ("method=fedavg + proximal(mu=0.1)", "method", "fedavg + proximal(mu=0.1)"),
        ("partition='iid'", "partition", "iid"),
        ("data=a=b.csv", "data", "a=b.csv"),
    ],
)
def test_overrides_are_literals_or_text(text: str, key: str, value: object) -> None:
    assert getattr(RunConfig.read(None, [text]), key) == value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rouns": 3}, "unknown key 'rouns'; did you mean 'rounds'?"),
        ({"train": {"rounds": 3}}, "keys are flat: write those of [train] without that line"),
        ({"rounds": "many"}, "rounds = 'many' will not do: it should be a valid integer"),
        ({"rounds": 2.5}, "rounds = 2.5 will not do: it should be a valid integer"),
        ({"rounds": 0}, "rounds = 0 will not do: it should be greater than or equal to 1"),
        ({"participation": 0}, "participation = 0 will not do: it should be greater than 0"),
        ({"participation": 1.1}, "participation = 1.1 will not do: it should be less than or"),
        ({"lr": -0.1}, "lr = -0.1 will not do: it should be greater than 0"),
        ({"momentum": 1}, "momentum = 1 will not do: it should be less than 1"),
        (
            {"normalize": "x"},
            "normalize = 'x' will not do: it should be 'auto', 'half'",
        ),
        ({"method": 3}, "method = 3 will not do: it should be a valid string"),
        ({"data": " "}, "data = ' ' will not do: string should have at least 1 character"),
        ({"out": ""}, "out = '' will not do: string should have at least 1 character"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        RunConfig.checked(given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("rounds = [", "is not valid TOML"),
        ("rounds = 1\nrounds = 2", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (None, "cannot read the configuration"),
    ],
)
def test_files_that_cannot_be_used(content: str | bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.write_text(content)
    with pytest.raises(BadInput, match=said) as caught:
        RunConfig.read(file)
    assert str(file) in str(caught.value)


def test_every_key_is_described_and_what_help_says_of_training_is_true() -> None:
    """Help cannot import torch for `Opt`, so its defaults are written down twice."""
    for key, field in RunConfig.model_fields.items():
        assert field.description, key
    defaults = {key: getattr(Opt(), name) for key, name in OPT_KEYS.items()}
    defaults |= {key: getattr(ServerOpt(), name) for key, name in SERVER_KEYS.items()}
    for key, default in defaults.items():
        written = (RunConfig.model_fields[key].description or "").partition("by default ")[2]
        if written:
            value = literal("0" if written == "none" else written)
            assert value == default, key
    assert {
        k for k, f in RunConfig.model_fields.items() if "by default " in str(f.description)
    } >= {
        *("optimizer", "lr", "epochs", "batch_size", "momentum", "weight_decay", "clip", "decay"),
        *("server_optimizer", "server_lr", "server_beta2", "server_tau"),
    }
    described = str(RunConfig.model_fields["protocol"].description)
    presets = described.split(";", maxsplit=1)[0].replace(" or ", ", ").split(", ")
    assert set(presets) == set(PROTOCOLS)


def test_a_run_writes_down_everything_resolved_and_that_gives_the_same_run() -> None:
    """The method's own settings, the number of clients and the model are in the configuration
    after building, and building from it once more changes nothing."""
    asked = RunConfig(method="fedprox", data="digits", rounds=2, lr=0.5, partition="iid")
    first = Experiment.build(asked).config
    assert (first.clients, first.model, first.lr, first.epochs) == (20, "mlp", 0.5, Opt().epochs)
    assert "proximal(mu=0.01)" in first.method
    assert None not in (first.batch_size, first.momentum, first.decay, first.drop_last)
    assert Experiment.build(first).config == first


def test_changing_a_configuration_checks_it() -> None:
    config = RunConfig()
    assert config.changed(rounds=3).rounds == 3
    assert config.rounds == 50
    with pytest.raises(BadInput, match="rounds"):
        config.changed(rounds=-1)


@pytest.mark.parametrize("key", ["privacy", "secure_aggregation", "hostile"])
def test_none_is_no_expression(key: str) -> None:
    """As a flag, which is text; `--compression none` names a kind."""
    assert getattr(RunConfig.read(flags={key: "none"}), key) is None
    assert RunConfig.read(flags={"compression": "none"}).compression == "none"


def test_normalize_none_means_none_and_not_by_the_data() -> None:
    assert RunConfig.read(overrides=["normalize=none"]).normalization == "none"
    assert RunConfig().normalization is None


def test_imports_of_a_file_an_override_and_flags_are_all_done(tmp_path: Path) -> None:
    """A later one does not hide an earlier one: it may register what the earlier one needs."""
    file = tmp_path / "run.toml"
    file.write_text('imports = ["a.py", "b"]\n')
    assert RunConfig.read(file).imports == ("a.py", "b")
    assert RunConfig.read(file, flags={"imports": ["c.py"]}).imports == ("a.py", "b", "c.py")
    assert RunConfig.read(None, ["imports=a.py, b"]).imports == ("a.py", "b")
    assert RunConfig.read().imports == ()


def test_a_model_in_a_file_is_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path stands once, among the imports; other models stay as they were written."""
    monkeypatch.setattr(extensions, "_imported", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    net = tmp_path / "a_net_of_mine.py"
    net.write_text("def net():\n    return 1\n")
    config = RunConfig(model=f"{net}:net(width=3) | mlp |torch.nn:Linear").imported()
    assert config.model == "a_net_of_mine:net(width=3) | mlp | torch.nn:Linear"
    (spec,) = config.imports
    assert spec.startswith(f"{net}#sha256=")
    assert config.imported() == config
