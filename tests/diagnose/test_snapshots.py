"""Snapshots of runs whose models are known: what was received, what the next round trains."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.digest import receipt, state_sha256
from fedloom.core.net import Net
from fedloom.diagnose import layers
from fedloom.diagnose.layers import inner_layers, outputs, representations
from fedloom.diagnose.samples import Samples
from fedloom.diagnose.snapshots import Snapshots
from fedloom.errors import BadInput, CheckpointError, FedloomError, RunFolderError
from fedloom.runs.result import Result
from helpers import StopAt, digits

SMALL: dict[str, Any] = {"model": "mlp(hidden=[12, 8])", "clients": 4, "rounds": 2}


@pytest.fixture(scope="module")
def fedavg() -> Result:
    return fl.run("fedavg", partition="dirichlet(alpha=0.5)", **SMALL)


# ------------------------------------------------------------------ features


def test_few_columns_are_shared_by_clients_that_received_the_same(fedavg: Result) -> None:
    """FedAvg's clients receive one model: 12 columns of 6 rows are turned once for all of them.
    After training they differ."""
    snapshots = Snapshots.of(fedavg, rows=6)
    first, second = snapshots.client(0), snapshots.client(1)
    assert first.before.few_columns(first.balanced, "body.1") is second.before.few_columns(
        second.balanced, "body.1"
    )
    trained = [one.after.few_columns(one.balanced, "body.1") for one in (first, second)]
    assert not torch.allclose(*(few.gram for few in trained))
    for client, few in zip((first, second), trained, strict=True):
        z = client.after.features(client.balanced)["body.1"].double()
        about = z - z.mean(0)
        assert few.columns.shape == (len(z), min(z.shape))
        for gram in (few.gram, few.columns @ few.columns.T):
            assert torch.allclose(gram, about @ about.T)


def runs_of_stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that networks run from now on."""
    ran: list[str] = []
    run_stage = Net._run

    def noted(self: Net, w: Any, name: str, *rest: Any) -> torch.Tensor:
        ran.append(name)
        return run_stage(self, w, name, *rest)

    monkeypatch.setattr(Net, "_run", noted)
    return ran


@pytest.mark.parametrize("method", ["fedavg", "fedrod", "dualfed", "knnper"])
def test_predictions_of_known_features_run_no_stage_again(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are the same, to the bit, as without the features; in passes of 300 and 150 rows."""
    monkeypatch.setattr("fedloom.diagnose.snapshots.rows_per_prediction", lambda net: 300)
    snapshots = Snapshots.of(fl.run(method, **SMALL), clients=1)
    first, second = (snapshots.client(0).final or snapshots.client(0).after for _ in range(2))
    predicted = first.probabilities(snapshots.samples.pool)
    kept = {layer: z.clone() for layer, z in second.features(snapshots.samples.pool).items()}
    ran = runs_of_stages(monkeypatch)
    assert torch.equal(second.probabilities(snapshots.samples.pool), predicted)
    assert not ran
    features = second.features(snapshots.samples.pool)
    assert all(torch.equal(features[layer], z) for layer, z in kept.items())


def test_what_features_leave_out_is_run_for_a_prediction(
    fedavg: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer of which only some entries are kept; and all stages where one draws, because features
    are without chance and the prediction is not."""
    ran = runs_of_stages(monkeypatch)
    monkeypatch.setattr(layers, "WIDEST", 5)  # of 8
    first, second = (Snapshots.of(fedavg, clients=1).client(0) for _ in range(2))
    first.after.features(first.pool)
    ran.clear()
    predicted = first.after.probabilities(first.pool)
    assert ran == ["body", "head"]
    assert torch.equal(predicted, second.after.probabilities(second.pool))
    stochastic = fl.run("fedcr(dim=6, samples=3, adapt_epochs=1)", **SMALL)
    views = [Snapshots.of(stochastic, clients=1).client(0) for _ in range(2)]
    views[1].before.features(views[1].pool)
    both = [view.before.probabilities(view.pool) for view in views]
    assert torch.equal(*both)


# ------------------------------------------------------------------ layers


def test_layers_of_a_convolutional_network_are_those_of_dbe() -> None:
    """28x28: two 5x5 convolutions with 2x2 pooling leave 32 x 12 x 12 and 64 x 4 x 4 numbers."""
    net = fl.build_model("cnn4", (1, 28, 28), 10, seed=0)
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    layers_of_net = outputs(net, net.tree(), x)
    widths = {name: z[0].numel() for name, z in layers_of_net.items()}
    assert widths == {"body.conv1": 4608, "body.conv2": 1024, "body": 512, "head": 10}
    fine = fl.build_model("cnn4(stages=fine)", (1, 28, 28), 10, seed=0)
    stages = fine(fine.tree(), x)
    for layer, stage in (("body.conv1", "conv1"), ("body.conv2", "conv2"), ("body", "fc")):
        assert torch.equal(layers_of_net[layer].flatten(1), stages[stage].flatten(1))
    assert not any(module._forward_hooks for module in net.modules())


def test_a_layer_takes_in_its_normalisation_and_activation() -> None:
    trunk = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU()
    )
    assert inner_layers("body", trunk) == [("body.1", trunk[3])]
    assert inner_layers("body", nn.Linear(4, 3)) == []


def test_a_module_in_two_places_is_not_taken_for_one_layer() -> None:
    """The hook of the shared activation would give its last output, which is another layer's."""
    act = nn.ReLU()
    trunk = nn.Sequential(nn.Linear(4, 3), act, nn.Linear(3, 3), act)
    assert inner_layers("body", trunk) == []
    net = Net((4,), body=trunk, head=nn.Linear(3, 2))
    assert list(outputs(net, net.tree(), torch.ones(2, 4))) == ["body", "head"]


def test_an_activation_in_place_does_not_change_the_layer_before() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.fc(z.clone())
            z.zero_()
            return out

    net = Net((4,), body=nn.Sequential(nn.Linear(4, 3), Block()), head=nn.Linear(3, 2))
    w, x = net.tree(), torch.ones(2, 4)
    expected = x @ w["body.0.weight"].T + w["body.0.bias"]
    torch.testing.assert_close(outputs(net, w, x)["body.0"], expected)


def test_wide_layers_keep_the_same_entries_for_everybody(
    fedavg: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "WIDEST", 5)
    snapshots = Snapshots.of(fedavg, clients=2)
    first, second = (snapshots.client(cid).before for cid in snapshots.ids)
    rows = snapshots.samples.balanced
    z = first.features(rows)["body"]
    assert z.shape == (len(rows), 5)
    assert first.entries["body"] == 8
    assert torch.equal(z, second.features(rows)["body"])
    monkeypatch.setattr(layers, "WIDEST", 8)
    whole = snapshots.client(0).before.features(rows)["body"]
    assert all(any(torch.equal(column, other) for other in whole.T) for column in z.T)


# ------------------------------------------------------------------ models


def test_before_is_the_servers_model_and_after_is_what_the_next_round_trains(
    fedavg: Result,
) -> None:
    """FedAvg's next server is the mean of the clients' models after training, weighted by rows:
    (sum n_i A_i) / n of round 3 must be the server of the same run with three rounds."""
    snapshots = Snapshots.of(fedavg, clients=4)
    assert (snapshots.ids, snapshots.round) == ([0, 1, 2, 3], 2)
    views = [snapshots.client(cid) for cid in snapshots.ids]
    longer = fl.run("fedavg", partition="dirichlet(alpha=0.5)", **{**SMALL, "rounds": 3})
    rows = [len(view.data.train) for view in views]
    for key, at_server in fedavg.server["model"].items():
        assert all(torch.equal(view.before.state["model"][key], at_server) for view in views)
        after = [view.after.state["model"][key].double() for view in views]
        mean = sum(n * z for n, z in zip(rows, after, strict=True)) / sum(rows)
        torch.testing.assert_close(longer.server["model"][key].double(), mean, atol=1e-6, rtol=0)
        assert not torch.equal(after[0], after[1])


def test_looking_changes_no_state(fedavg: Result) -> None:
    before = state_sha256(fedavg.server, fedavg.clients)
    stream = torch.get_rng_state()
    view = Snapshots.of(fedavg, clients=1).client(0)
    view.after.features(view.balanced)
    assert state_sha256(fedavg.server, fedavg.clients) == before == fedavg.summary.state_sha256
    assert torch.equal(torch.get_rng_state(), stream)


def test_batch_norm_statistics_differ_before_and_rows_do_not_influence_each_other() -> None:
    """FedBN keeps them with the clients; in evaluation mode a row's features are its own."""
    result = fl.run("fedbn", **{**SMALL, "model": "mlp(hidden=[12], norm=batch)"})
    snapshots = Snapshots.of(result, clients=2)
    one, two = (snapshots.client(cid).before for cid in snapshots.ids)
    rows = snapshots.samples.balanced
    z = one.features(rows)["body"]
    assert not torch.allclose(z, two.features(rows)["body"])
    alone = outputs(one.net, one.state["model"], rows.inputs[:1])["body"]
    torch.testing.assert_close(alone, z[:1])


def test_with_dbe_the_layer_in_front_is_measured_without_the_personal_mean() -> None:
    """z = z^g + z_p: the stages differ by one and the same vector in every row."""
    result = fl.run("fedavg + dbe", **SMALL)
    client = Snapshots.of(result, clients=1).client(0)
    features = client.before.features(client.balanced)
    (personal,) = (v for k, v in client.before.state["model"].items() if k.startswith("prbm."))
    assert personal.abs().max() > 0
    torch.testing.assert_close(
        features["prbm"] - features["body"], personal.expand(len(features["body"]), -1)
    )
    assert client.representations == ["body", "prbm"]


def test_a_stochastic_layer_is_measured_at_its_mean_and_sampled_for_the_ensemble() -> None:
    """fedcr(dim=6, samples=3): `gauss` gives six means, `sample` is no layer, and the head of the
    mean is W mu + b. Members differ, and their spread is that of W sigma e."""
    result = fl.run("fedcr(dim=6, samples=3, adapt_epochs=1)", **SMALL)
    client = Snapshots.of(result, clients=1).client(0)
    model, rows = client.before, client.balanced
    features = model.features(rows)
    assert {k: z.shape[1] for k, z in features.items()} == {
        "body.1": 12,
        "body": 8,
        "gauss": 6,
        "head": 10,
    }
    assert representations(model.net) == ["body", "gauss"]
    w = model.state["model"]
    by_hand = features["gauss"] @ w["head.weight"].T + w["head.bias"]
    torch.testing.assert_close(model.single_logits(rows), by_hand)
    torch.testing.assert_close(features["head"], by_hand)
    members = model.ensemble_logits(rows)
    assert members.shape == (3, len(rows), 10)
    assert not torch.equal(members[0], members[1])
    assert torch.equal(members, model.ensemble_logits(rows))
    assert model.stochastic
    assert client.final is not None


def test_an_ensemble_without_deviation_is_the_single_pass() -> None:
    result = fl.run("fedcr(dim=6, samples=3, sigma=0.0, beta=0.0, adapt_epochs=0)", **SMALL)
    client = Snapshots.of(result, clients=1).client(0)
    members, single = (
        ask(client.balanced) for ask in (client.after.ensemble_logits, client.after.single_logits)
    )
    torch.testing.assert_close(members, single.expand(3, -1, -1))
    assert client.final is None


def test_texts_and_unlike_networks() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 50, size=(120, 7))
    source = fl.Source.from_arrays(tokens, tokens[:, 0] % 3, kind="text")
    result = fl.run("local", source, partition="iid", clients=3, rounds=1)
    client = Snapshots.of(result, clients=1).client(0)
    assert client.after.features(client.balanced)["head"].shape == (len(client.balanced), 3)
    unlike = fl.run("local", **{**SMALL, "model": "mlp(hidden=[5]) | mlp(hidden=[7])"})
    snapshots = Snapshots.of(unlike, clients=4)
    rows = snapshots.samples.balanced
    widths = [snapshots.client(i).before.features(rows)["body"].shape[1] for i in snapshots.ids]
    assert widths == [5, 7, 5, 7]


# ------------------------------------------------------------------ rows


def test_balanced_rows_are_the_same_for_everybody_and_equally_many_of_each_class(
    fedavg: Result,
) -> None:
    snapshots = Snapshots.of(fedavg, rows=40)
    rows = snapshots.samples.balanced
    assert rows.y.bincount().tolist() == [4] * 10
    assert all(snapshots.client(cid).balanced is rows for cid in snapshots.ids)
    for x, y, owner in zip(rows.inputs, rows.y, rows.owners.tolist(), strict=True):
        test = fedavg.experiment.data.client(owner).test
        assert test is not None
        held = test.x(torch.arange(len(test)))
        same = (held == x).flatten(1).all(1)
        assert y in test.y[same]


def test_balanced_rows_depend_on_rows_and_seed_alone() -> None:
    data = digits(((0, 1), 8), ((1, 2), 8))
    drawn = Samples(data, 2, rows=20).balanced
    assert drawn.sha256 == Samples(data, 2, rows=20).balanced.sha256
    assert drawn.sha256 != Samples(data, 2, rows=20, seed=1).balanced.sha256
    assert torch.equal(drawn.inputs, Samples(data, 2, rows=20).balanced.inputs)


def test_of_a_rare_class_all_rows_are_taken() -> None:
    """Six test rows each, classes dealt in turn: 0 1 0 1 0 1 and 1 2 1 2 1 2, so 3, 6 and 3. At
    most 40 / 10 = 4 of a class are taken."""
    rows = Samples(digits(((0, 1), 8), ((1, 2), 8)), 2, rows=40).balanced
    assert rows.y.bincount().tolist() == [3, 4, 3]


def test_own_rows_are_at_most_so_many() -> None:
    samples = Samples(digits(((0, 1), 30), ((1, 2), 8)), 2, rows=10)
    train, test = samples.local(0, "train"), samples.local(0, "test")
    assert train is not None
    assert test is not None
    assert (len(train), train.y.bincount().tolist(), len(test)) == (10, [5, 5], 6)
    assert samples.local(0, "val") is not None


def test_shared_test_sets_stand_in_for_clients_without_test_rows() -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    source = fl.Source.from_arrays(x, y, official_test=np.arange(60) >= 40)
    data = fl.federate(source, "iid", 3, split="shared_test")
    rows = Samples(data, 3, rows=10).balanced
    assert rows.y.bincount().tolist() == [5, 5]
    assert set(rows.owners.tolist()) == {-1}
    assert Samples(data, 3).local(0, "test") is None


# ------------------------------------------------------------------ what cannot be looked at


def stopped_run(out: Path, after: int = 2, **settings: Any) -> Path:
    settings = {**SMALL, "rounds": 4, "checkpoint_every": 1, **settings}
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg", out=str(out), watchers=[StopAt(after)], **settings)
    return out


def test_a_folder_gives_the_newest_checkpoint(tmp_path: Path) -> None:
    """Stopped after round 2, it has the models of a run with two rounds."""
    out = stopped_run(tmp_path / "run")
    snapshots = Snapshots.of(out, clients=1)
    ended = fl.run("fedavg", **SMALL)
    assert snapshots.round == 2
    received = snapshots.client(0).before.state["model"]
    assert all(torch.equal(v, received[k]) for k, v in ended.server["model"].items())


def test_a_damaged_checkpoint_is_passed_over_and_none_left_is_one_sentence(tmp_path: Path) -> None:
    out = stopped_run(tmp_path / "run")
    newest, older = sorted((out / "checkpoints").glob("step-*"), reverse=True)
    file = newest / "server.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    snapshots = Snapshots.of(out)
    assert snapshots.round == 1
    assert [newest.name in warning for warning in snapshots.warnings] == [True]
    shutil.rmtree(older)
    refused_in_one_sentence(CheckpointError, out, "is damaged")
    shutil.rmtree(newest)
    refused_in_one_sentence(CheckpointError, out, "there is no checkpoint")


def refused_in_one_sentence(kind: type[FedloomError], run: Path, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        Snapshots.of(run)
    assert "\n" not in str(caught.value)


def test_folders_that_cannot_be_looked_at(tmp_path: Path) -> None:
    refused_in_one_sentence(RunFolderError, tmp_path, "there is no run")
    out = tmp_path / "special"
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg + dbe", out=str(out), watchers=[StopAt(1)], **SMALL)
    refused_in_one_sentence(BadInput, out, "no finished round")
    data = fl.federate(fl.load("digits"), "iid", 3)
    fl.run("fedavg", data, rounds=1, out=str(tmp_path / "object"))
    refused_in_one_sentence(BadInput, tmp_path / "object", r"Snapshots.of\(.*data=\.\.\.")
    assert Snapshots.of(tmp_path / "object", data=data).round == 1


def test_receipts_are_not_taken_for_states(fedavg: Result) -> None:
    receipts = {cid: receipt("00" * 32) for cid in range(4)}
    with pytest.raises(BadInput, match="kept their states to themselves"):
        Snapshots(fedavg.experiment, fedavg.server, receipts, fedavg.records)
