"""A protocol as an object and as an expression, and what the presets become for each method."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from torch import nn

import fedloom as fl
from fedloom.core.adaptation import lasting
from fedloom.core.net import Net
from fedloom.core.phase import Phase
from fedloom.core.program import Program
from fedloom.core.protocol import PROTOCOLS, Protocol, parse_protocol
from fedloom.deploy.settings import Settings
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.runs.config import RunConfig
from fedloom.runs.stored import read_config

OTHER = Protocol(
    model="global_if_any",
    moment="personalized",
    clients="cohort",
    split="val",
    on="shared_if_any",
    select="best_val",
    average="samples",
    also=("trained",),
    full_last_round=True,
    head_epochs=3,
    newcomer_epochs=7,
    metric="nll",
)
"""No field has its default."""
SMALL = {"clients": 4, "partition": "iid", "rounds": 2, "progress": False}


# ------------------------------------------------------------------ the expression


def test_every_field_can_be_set_in_an_expression():
    for field in fields(Protocol):
        value = getattr(OTHER, field.name)
        assert value != field.default
        text = f"dualfed({field.name}={value!r})"
        assert getattr(parse_protocol(text), field.name) == value
        assert parse_protocol(text).select in ("best_test_per_client", "best_val")


@pytest.mark.parametrize("protocol", [*PROTOCOLS.values(), OTHER, Protocol(also=())], ids=str)
def test_an_object_reads_back_from_what_is_written(protocol):
    assert parse_protocol(str(protocol)) == protocol
    assert RunConfig.checked({"protocol": protocol}).protocol == str(protocol)


@pytest.mark.parametrize(
    ("written", "also"),
    [("none", ()), ("[]", ()), ("trained", ("trained",)), ("[final]", ("final",))],
)
def test_moments_beside_the_result_are_a_list_one_word_or_none(written, also):
    assert parse_protocol(f"fedpac(also={written})").also == also


def test_words_need_no_quotes_though_python_has_them_as_keywords():
    assert parse_protocol("fedloom(model=global)").model == "global"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedpack", "unknown protocol 'fedpack'; did you mean 'fedpac'?"),
        (
            "fedpac(momen=received)",
            "protocol 'fedpac' has no field 'momen'; did you mean 'moment'?",
        ),
        ("dbe(moment=recieved)", "moment = 'recieved' is unknown; did you mean 'received'?"),
        ("dbe(also=[traind])", "also = 'traind' is unknown; did you mean 'trained'?"),
        ("dbe(also=3)", "also = 3 is no list of moments; write also=[trained]"),
        ("dbe(received)", "write fields by name, for instance moment=received"),
        ("fedcr(head_epochs=-1)", "head_epochs = -1 is not a number of epochs, 0 or more"),
        ("fedcr(head_epochs=true)", "head_epochs = True is not a number of epochs, 0 or more"),
        ("dbe(newcomer_epochs=0)", "newcomer_epochs = 0 is not a number of epochs, 1 or more"),
        ("dbe(full_last_round=1)", "full_last_round = 1 is neither true nor false"),
        ("dbe(on=shared, split=val)", "shared test sets have no validation rows"),
        ("fedbr(on=shared, clients=new)", "tests new participants on their own rows"),
        ("dbe + fedpac", "must be one name with arguments"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(text, message):
    with pytest.raises(fl.FedloomError) as refusal:
        RunConfig.checked({"protocol": text})
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_values_of_an_object_are_checked_too():
    with pytest.raises(BadInput, match="average = 'sample' is unknown; did you mean 'samples'"):
        Protocol(average="sample")


# ------------------------------------------------------------------ where it is given


def test_a_run_records_the_protocol_it_was_given(tmp_path: Path):
    protocol = fl.Protocol(moment="received", select="best_test")
    given = fl.run("fedper", protocol=protocol, out=str(tmp_path / "run"), **SMALL)
    written = read_config(tmp_path / "run").protocol
    assert given.summary.protocol == written == "fedloom(moment='received', select='best_test')"
    again = fl.run("fedper", protocol=written, **SMALL)
    assert again.summary.result == given.summary.result
    assert fl.resume(tmp_path / "run", rounds=3, progress=False).summary.protocol == written


def test_a_comparison_takes_an_object_and_a_deployment_an_expression():
    protocol = fl.Protocol(moment="trained", also=())
    comparison = fl.compare(["local", "fedavg"], seeds=[0], protocol=protocol, **SMALL)
    assert {row.summaries[0].result.at.moment for row in comparison.rows} == {"trained"}
    settings = Settings.read({"clients": 2, "protocol": "cohort(also=[received])"})
    assert settings.run.protocol == "cohort(also=[received])"
    with pytest.raises(BadInput, match="has no field 'moments'; did you mean 'moment'"):
        Settings.read({"clients": 2, "protocol": "cohort(moments=received)"})


def test_a_comparison_is_refused_before_its_first_run(tmp_path: Path):
    """Of SphereFed's fixed classifier no head can be trained."""
    with pytest.raises(BadInput, match="spherefed makes its predictions without a head"):
        fl.compare(["fedavg", "spherefed"], protocol="fedcr", out=str(tmp_path / "all"), **SMALL)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_the_best_round_on_validation_rows_is_the_number_everywhere(method, tmp_path: Path):
    """In a run, in a comparison and in its table: the test score of the round that is best on
    validation rows, be it not the best one on test rows."""
    settings = {**SMALL, "rounds": 5, "lr": 0.5, "split": "merged(train=0.6, val=0.2)"}
    protocol = "fedloom(moment=received, select=best_val)"
    result = fl.run(method, protocol=protocol, **settings)
    at = fl.At("received", "test")
    curve = {
        split: [record.score(fl.At("received", split)).spread().mean for record in result.records]
        for split in ("val", "test")
    }
    best = curve["val"].index(max(curve["val"]))
    assert result.summary.result.rounds == (best + 1,)
    assert result.accuracy == pytest.approx(curve["test"][best])
    assert result.summary.result.at == at
    comparison = fl.compare([method], seeds=[0], protocol=protocol, **settings)
    assert comparison.rows[0].accuracy == result.accuracy
    assert f",{result.accuracy!r}," in comparison.to_csv()


# ------------------------------------------------------------------ presets, method by method


def program(text: str, head_epochs: int = 0) -> Program:
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.ReLU())
    net = Net((1, 3, 4), body=body, head=nn.Linear(12, 3))
    return Program(parse_method(text), net, 4, head_epochs=head_epochs)


@pytest.mark.parametrize(
    ("moment", "methods"),
    [
        ("received", "fedavg fedprox scaffold moon fedavg+fedgen hypcluster fedem knnper"),
        ("received", "fedavg(shared='*',weighting=uniform) fedsr perfedavg(adapt_steps=0)"),
        ("adapted", "fedavg_ft fedbabu fedem(adapt_epochs=5) fedrep perfedavg fedcr"),
        ("trained", "local fedper lg_fedavg fedrep(adapt_epochs=0) fedrod apfl pfedme ditto"),
        ("trained", "fedfomo pfedhn apple fedproto fedpac fedpac(combine=false) dualfed"),
        ("trained", "fedavg+dbe ditto+proximal"),
    ],
)
def test_fedpac_tests_what_each_method_personalizes(moment, methods):
    """Tables 1 and 4: FedAvg, FedProx, SCAFFOLD, HypCluster and FedEM are near to one another and
    far below FedAvg-FT and FedEM-FT, so they were tested as received."""
    for text in methods.split():
        settled = PROTOCOLS["fedpac"].settled(program(text), shared_tests=False)
        assert settled.moment == moment, text


@pytest.mark.parametrize(
    ("text", "tests", "expected"),
    [
        ("fedavg", True, ("global", "shared")),
        ("fedavg", False, ("global", "clients")),
        ("local", True, ("personal", "shared")),
        ("fedper", False, ("personal", "clients")),
    ],
)
def test_fedbr_tests_the_global_model_on_shared_domains_where_there_are_such(text, tests, expected):
    settled = PROTOCOLS["fedbr"].settled(program(text), shared_tests=tests)
    assert (settled.model, settled.on, settled.moment) == (*expected, "received")


def test_fedcr_gives_everybody_ten_head_epochs_in_place_of_their_own_tuning():
    for text in ("fedavg", "ditto", "fedbabu", "fedavg_ft", "fedcr", "perfedavg"):
        ready = program(text, head_epochs=10)
        assert ready.adapt == (Phase("tune", "head.*", epochs=10),)
        assert PROTOCOLS["fedcr"].settled(ready, shared_tests=False).moment == "final"
        assert [plan.kind for plan in ready.schedule(1)][-1] == "adapt"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedcr(model=global)", "head_epochs = 10 trains heads of the clients"),
        ("fedbr(moment=trained)", "a global model is tested as received"),
        ("fedloom(model=global, moment=adapted)", "a global model is tested as received"),
    ],
)
def test_a_global_model_has_one_moment_and_no_head_of_its_own(text, message):
    with pytest.raises(BadInput, match=message):
        parse_protocol(text).settled(program("fedavg"), shared_tests=True)


# ------------------------------------------------------------------ how long newcomers train


def epochs(phases, number):
    return [(phase.epochs, phase.steps) for phase in lasting(phases, number)]


def test_phases_share_the_newcomers_epochs_in_their_proportion():
    """FedRep's 4 and 1 of 5 become 8 and 2 of 10; a phase that follows the run stays, and so do
    the others beside it (FedETF's turns); a number of steps is one share."""
    rep = parse_method("fedrep").phases
    assert epochs(rep, 10) == [(8, None), (2, None)]
    assert epochs(rep, None) == [(4, None), (1, None)]
    assert epochs((Phase(),), 10) == [(None, None)]
    etf = parse_method("fedetf(alternations=1)").adapt
    assert epochs(etf, 10) == [(None, None), (3, None), (3, None)]
    (tuned,) = lasting(parse_method("perfedavg(alpha=0.02)").adapt, 10)
    assert (tuned.epochs, tuned.steps, tuned.lr) == (10, None, 0.02)
    assert epochs(rep, 1) == [(1, None), (1, None)]
