"""Training settings: which are a method's own, what a run fills, and what is written down."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedloom as fl
from fedloom.core.phase import Opt
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.settings import OPT_KEYS, SERVER_KEYS
from fedloom.errors import BadInput, FedloomError
from fedloom.methods import describe, parse_method, register, with_run_settings
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedper import FedPer
from fedloom.methods.pfedme import PFedMe
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import StopAt

SMALL: dict[str, Any] = {"rounds": 3, "clients": 4, "partition": "iid", "model": "mlp(hidden=[8])"}


def built(method: str | fl.Method, **settings: Any) -> Experiment:
    config = RunConfig.checked({**SMALL, **settings})
    if isinstance(method, str):
        return Experiment.build(config.changed(method=method))
    return Experiment.build(config.changed(method=describe(method)), method)


def test_settings_in_an_expression_are_the_methods_own() -> None:
    method = parse_method("fedper(lr=0.1, epochs=5, optimizer=adam, batch_size=32)")
    assert method == FedPer(opt=Opt("adam", lr=0.1, epochs=5, batch=32))
    server = parse_method("fedavg(server_optimizer=yogi, server_lr=0.01)").server
    assert server == ServerOpt("yogi", lr=0.01)
    assert parse_method("fedprox(mu=1, lr=0.1)").opt.lr == 0.1  # a recipe that is a method


def test_the_methods_own_win_and_the_runs_fill_the_rest() -> None:
    run = {"lr": 0.2, "momentum": 0.5, "server_lr": 0.7}
    for method in ("fedper(lr=0.1)", FedPer(opt=Opt(lr=0.1))):
        program = built(method, **run).program
        assert program.method.opt == Opt(lr=0.1, momentum=0.5)
        assert program.method.server == ServerOpt(lr=0.7)
    own = built("fedper(server_optimizer=adam, server_lr=0.1)", **run).program.method
    assert own.server == ServerOpt("adam", lr=0.1)


def test_a_default_that_is_written_wins_too() -> None:
    assert built("fedper(lr=0.05)", lr=0.2).program.method.opt.lr == 0.05
    assert built("fedper", lr=0.2).program.method.opt.lr == 0.2


def test_a_run_does_not_undo_what_the_method_chose() -> None:
    """Its steps would stand in for the method's epochs; its momentum is not for the method's
    optimiser."""
    assert built("fedper(epochs=5)", steps=20).program.method.opt == Opt(epochs=5)
    adam = built("fedper(optimizer=adam)", momentum=0.9, lr=0.01).program.method.opt
    assert adam == Opt("adam", lr=0.01)
    plain = built("fedper(server_optimizer=sgd)", server_optimizer="adam", server_tau=0.1)
    assert plain.program.method.server == ServerOpt()
    with pytest.raises(BadInput, match="adam does not read momentum"):
        built("fedper", optimizer="adam", momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class Slow(FedAvg):
    """A method whose class has another learning rate."""

    name: ClassVar[str] = "slow"
    opt: Opt = field(default_factory=lambda: Opt(lr=0.001))


def test_the_default_of_a_class_is_for_the_run_to_replace() -> None:
    assert describe(Slow()) == "slow"
    assert with_run_settings(Slow(), RunConfig(lr=0.3).model_dump()).opt.lr == 0.3
    assert describe(Slow(opt=Opt(lr=0.05))) == "slow(lr=0.05)"


# ------------------------------------------------------------------ describe


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (FedPer(), "fedper"),
        (FedPer(opt=Opt(lr=0.1)), "fedper(lr=0.1)"),
        (FedPer(opt=Opt("adamw", batch=8)), "fedper(optimizer='adamw', batch_size=8)"),
        (FedAvg(server=ServerOpt("yogi")), "fedavg(server_optimizer='yogi')"),
        (FedAvg(opt=Opt(keep_state=True)), "fedavg(keep_state=True)"),
    ],
)
def test_own_settings_are_written(method: fl.Method, text: str) -> None:
    assert describe(method) == text
    assert parse_method(text) == method
    assert parse_method(describe(method, full=True)) == method


def test_a_runs_settings_are_not_written() -> None:
    assert describe(built("fedper(epochs=2)", lr=0.3, server_lr=0.5).program.method) == (
        "fedper(epochs=2)"
    )


def test_a_written_default_stays_written() -> None:
    assert describe(parse_method("fedper(lr=0.05)")) == "fedper(lr=0.05)"


@pytest.mark.parametrize(
    "method",
    [
        "fedper(lr=0.1, optimizer=adamw, weight_decay=0.01)",
        "fedper(lr=0.05)",
        "fedavg(server_optimizer=adam, server_lr=0.02, server_tau=0.1)",
        "pfedme(steps=2, lr=0.01)",
        "hypcluster(server_lr=0.5)",
        FedPer(opt=Opt(steps=3, lr=0.3)),
        PFedMe(opt=Opt(steps=7)),
    ],
)
def test_the_resolved_configuration_gives_the_same_method(method: str | fl.Method) -> None:
    first = built(method, lr=0.2, epochs=2)
    again = Experiment.build(first.config)
    assert again.program.method == first.program.method
    assert again.config == first.config


# ------------------------------------------------------------------ names that clash

CLASHES = {
    ("pfedme", "steps"),
    *(("hypcluster", "server_lr"), ("pfedhn", "server_lr")),
    *(("fedcm", "server_lr"), ("scaffold", "server_lr")),
}
"""Method, and its argument with the name of a training setting. docs/training.md lists them."""


def test_arguments_with_the_name_of_a_setting_are_known() -> None:
    settings = {*OPT_KEYS, *SERVER_KEYS}
    clashes = set()
    for name in register:
        entry: Any = register[name]
        if isinstance(entry(), fl.Method):
            taken = set(inspect.signature(entry).parameters)
            clashes |= {(name, key) for key in taken & settings}
    assert clashes == CLASHES
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    for name, key in CLASHES:
        assert f"`{name}({key}=...)`" in page, name


def test_a_methods_own_argument_keeps_its_meaning() -> None:
    method = parse_method("pfedme(steps=2)")
    assert method == PFedMe(steps=2)
    assert built("pfedme(steps=2)", steps=9).program.method.opt.steps == 9
    assert parse_method("scaffold(server_lr=0.5)").server.lr == 0.5
    with pytest.raises(BadInput, match="hypcluster makes the server's model in its own way"):
        built("hypcluster", server_lr=0.5)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavg + proximal(lr=0.1)", "method 'proximal' has no argument 'lr'"),
        ("fedavg + dbe(lr=0.1)", "dbe is a term and has no 'lr'; write it with the method"),
        ("fedper(batch=8)", "no argument 'batch'; did you mean 'batch_size'"),
        ("fedper(lr=fast)", "lr = 'fast'"),
        ("fedper(epochs=1.5)", "epochs = 1.5"),
        ("fedper(lr=-1)", "lr must be at least 0"),
        ("fedper(optimizer=sdg)", "'sdg' is unknown; use 'sgd', 'adam', 'adamw', 'adagrad'"),
        ("fedper(opt=1)", "'opt' in an expression; write its settings by name"),
        ("fedper(optimizer=adam, momentum=0.9)", "adam does not read momentum"),
    ],
)
def test_what_will_not_do_is_named(text: str, message: str) -> None:
    with pytest.raises(FedloomError, match=message):
        parse_method(text)


# ------------------------------------------------------------------ runs


def test_a_comparison_of_one_method_with_two_rates(tmp_path: Path) -> None:
    """Two rows, two folders, different numbers, by expression and by object."""
    results = {}
    for kind, methods in {
        "text": ["fedper", "fedper(lr=0.5)"],
        "object": [FedPer(), FedPer(opt=Opt(lr=0.5))],
    }.items():
        out = tmp_path / kind
        comparison = fl.compare(methods, seeds=[0], **SMALL, out=str(out))
        assert [row.label for row in comparison.rows] == ["fedper", "fedper(lr=0.5)"]
        first, second = (row.summaries[0] for row in comparison.rows)
        assert first.state_sha256 != second.state_sha256
        assert (first.method, second.method) == ("fedper", "fedper(lr=0.5)")
        rates = {json.loads(p.read_text())["lr"] for p in out.glob("**/config.json")}
        assert rates == {0.05, 0.5}
        results[kind] = [first.state_sha256, second.state_sha256]
    assert results["text"] == results["object"]


@pytest.mark.parametrize("engine", ["inline", "pool", "vectorized"])
@pytest.mark.parametrize(
    "method",
    [
        "fedper(optimizer=adamw, lr=0.01, weight_decay=0.1, keep_state=true)",
        "fedavg(server_optimizer=yogi, server_lr=0.01, momentum=0.9)",
    ],
)
def test_engines_agree_and_resumed_is_straight(
    method: str, engine: str, tmp_path: Path, straight: dict[str, str]
) -> None:
    """The optimisers' states are in the checkpoints: stopped after two rounds of three."""
    if method not in straight:
        straight[method] = fl.run(method, **SMALL).summary.state_sha256
    out = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fl.run(method, **SMALL, engine=engine, out=out, watchers=[StopAt(2)])
    assert fl.resume(out).summary.state_sha256 == straight[method]


@pytest.fixture(scope="module")
def straight() -> dict[str, str]:
    """Method -> the digest of its undisturbed run on the inline engine."""
    return {}


def test_kept_state_is_in_the_clients_states() -> None:
    result = fl.run("fedper", **SMALL, optimizer="adam", keep_state=True)
    assert int(result.clients[0]["optimizer"]["model/local/steps"]) > SMALL["rounds"]
    thrown = fl.run("fedper", **SMALL, optimizer="adam")
    assert "optimizer" not in thrown.clients[0]
    assert thrown.summary.state_sha256 != result.summary.state_sha256


def test_python_settings_and_expression_are_one_vocabulary() -> None:
    by_key = fl.run("fedper", **SMALL, optimizer="adamw", lr=0.01, weight_decay=0.1)
    by_text = fl.run("fedper(optimizer=adamw, lr=0.01, weight_decay=0.1)", **SMALL)
    by_object = fl.run(FedPer(opt=Opt("adamw", lr=0.01, weight_decay=0.1)), **SMALL)
    digests = {r.summary.state_sha256 for r in (by_key, by_text, by_object)}
    assert len(digests) == 1
    assert replace(by_text.summary, method="", title="", seconds=0, activities={}) == replace(
        by_object.summary, method="", title="", seconds=0, activities={}
    )
