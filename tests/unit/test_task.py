"""What is learned: losses, predictions and metrics of tasks, and what runs make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.core.metrics import measured, metric
from fedloom.core.protocol import Protocol
from fedloom.core.task import Targets, parse_task, tasks
from fedloom.record import At, RoundRecord, Score
from fedloom.runs.choice import choose


def table(rows: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


SMALL = {"rounds": 2, "clients": 3, "partition": "iid", "model": "mlp(hidden=[4])"}


# ------------------------------------------------------------------ losses and predictions


def test_a_plain_classification_has_the_loss_that_it_always_had() -> None:
    logits, y = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    assert torch.equal(fl.Classification().loss(logits, y), F.cross_entropy(logits, y))


def test_smoothing_and_weights_are_those_of_cross_entropy() -> None:
    logits, y = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    task = parse_task("classification(smoothing=0.2, weights=[1, 3])")
    expected = F.cross_entropy(logits, y, torch.tensor([1.0, 3.0]), label_smoothing=0.2)
    torch.testing.assert_close(task.loss(logits, y), expected)


def test_balanced_weights_follow_from_all_training_rows() -> None:
    """Three rows of class 0 and one of class 1: 4 / (2 * 3) and 4 / (2 * 1)."""
    task = parse_task("classification(weights=balanced)").fitted(torch.tensor([0, 0, 1, 0]), 2)
    assert task.weights == (0.666667, 2.0)
    with pytest.raises(fl.BadInput, match="nobody can count the classes of sites' rows"):
        parse_task("classification(weights=balanced)").fitted(None, 2)


def test_a_regression_learns_normalised_numbers_and_predicts_in_units_of_the_data() -> None:
    """Targets 10 and 30 have mean 20 and deviation 10, so they are learned as -1 and 1."""
    y = torch.tensor([[10.0], [30.0]])
    task = fl.Regression().fitted(y, 1)
    assert (task.mean, task.std) == ((20.0,), (10.0,))
    assert task.loss(torch.tensor([[-1.0], [1.0]]), y) == 0
    assert task.predict(torch.tensor([[0.5]])) == 25
    assert task.measure(torch.tensor([[13.0], [26.0]]), y) == {
        "rmse": pytest.approx(math.sqrt(12.5)),
        "mae": pytest.approx(3.5),
    }


def test_a_regression_can_leave_its_numbers_as_they_are() -> None:
    task = fl.Regression(normalize=False, error="absolute").fitted(torch.tensor([[5.0]]), 1)
    assert task.loss(torch.tensor([[2.0]]), torch.tensor([[5.0]])) == 3
    with pytest.raises(fl.BadInput, match="write mean="):
        fl.Regression().fitted(None, 1)


def test_a_row_of_labels_counts_as_the_mean_over_its_labels() -> None:
    logits, y = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    task = fl.MultiLabel()
    assert float(task.loss(logits, y)) == pytest.approx(math.log(2))
    assert task.loss(logits, y, "none").shape == (1,)
    assert task.measure(torch.tensor([[0.9, 0.8]]), y)["accuracy"] == 0.5


@pytest.mark.parametrize("name", list(tasks))
def test_an_expression_reads_back_to_its_task(name: str) -> None:
    arguments = {"regression": "error='huber', mean=(1.0, 2.0), std=(0.5, 1.5)"}.get(name, "")
    task = parse_task(f"{name}({arguments})")
    assert parse_task(str(task)) == task


# ------------------------------------------------------------------ metrics by torchmetrics


@pytest.fixture
def classification() -> object:
    return pytest.importorskip("torchmetrics.functional.classification")


def test_our_accuracy_and_nll_are_those_of_torchmetrics(classification: object) -> None:
    prediction, y = torch.rand(40, 4).softmax(-1), torch.arange(40) % 4
    ours = fl.Classification().measure(prediction, y)
    theirs = classification.multiclass_accuracy(prediction, y, 4, average="micro")  # type: ignore[attr-defined]
    assert ours["accuracy"] == pytest.approx(float(theirs))
    assert ours["nll"] == pytest.approx(float(F.nll_loss(prediction.log(), y)))
    labels = (torch.rand(40, 3) > 0.5).float()
    theirs = classification.multilabel_accuracy(  # type: ignore[attr-defined]
        prediction[:, :3], labels.long(), 3, average="micro"
    )
    ours = fl.MultiLabel().measure(prediction[:, :3], labels)
    assert ours["accuracy"] == pytest.approx(float(theirs))


def test_our_errors_of_numbers_are_those_of_torchmetrics() -> None:
    regression = pytest.importorskip("torchmetrics.functional.regression")
    prediction, y = torch.randn(30, 2), torch.randn(30, 2)
    ours = fl.Regression().measure(prediction, y)
    squared = regression.mean_squared_error(prediction.flatten(), y.flatten(), squared=False)
    absolute = regression.mean_absolute_error(prediction.flatten(), y.flatten())
    assert ours["rmse"] == pytest.approx(float(squared), rel=1e-5)
    assert ours["mae"] == pytest.approx(float(absolute), rel=1e-5)


def test_metrics_are_those_of_scikit_learn_where_all_classes_occur(classification: object) -> None:
    """Another library than the one that computes them."""
    from sklearn import metrics

    gen = torch.Generator().manual_seed(0)
    p = torch.rand(90, 3, generator=gen).softmax(-1)
    y = torch.arange(90) % 3
    classes = {
        "balanced_accuracy": metrics.balanced_accuracy_score(y, p.argmax(-1)),
        "f1": metrics.f1_score(y, p.argmax(-1), average="macro"),
        "auroc": metrics.roc_auc_score(y, p.double() / p.double().sum(1, True), multi_class="ovr"),
        "average_precision": metrics.average_precision_score(F.one_hot(y), p, average="macro"),
    }
    for name, expected in classes.items():
        assert measured(name, "multiclass", p, y) == pytest.approx(expected, abs=1e-5), name
    two, y_two = p[:, :2] / p[:, :2].sum(1, keepdim=True), y % 2
    assert measured("auroc", "binary", two, y_two) == pytest.approx(
        metrics.roc_auc_score(y_two, two[:, 1]), abs=1e-5
    )
    labels = (torch.rand(90, 3, generator=gen) > 0.4).float()
    assert measured("auroc", "multilabel", p, labels) == pytest.approx(
        metrics.roc_auc_score(labels, p, average="macro"), abs=1e-5
    )
    numbers, guesses = torch.randn(20, 1, generator=gen), torch.randn(20, 1, generator=gen)
    assert measured("r2", "regression", guesses, numbers) == pytest.approx(
        metrics.r2_score(numbers, guesses), abs=1e-5
    )


def test_r2_does_not_depend_on_unit_or_origin() -> None:
    """Errors 1, 0, -1 around 0, 2, 4: 1 - 2 / 8. Numbers that are all the same have none."""
    pytest.importorskip("torchmetrics")
    y, p = torch.tensor([[0.0], [2.0], [4.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    for unit, origin in ((1.0, 0.0), (1e-4, 0.0), (1.0, 1e5)):
        value = measured("r2", "regression", p * unit + origin, y * unit + origin)
        assert value == pytest.approx(0.75, abs=1e-5)
    both = torch.cat([y, torch.ones_like(y)], 1)
    assert measured("r2", "regression", torch.cat([p, p], 1), both) == pytest.approx(0.75)
    assert math.isnan(measured("r2", "regression", p, torch.ones_like(y)))


def test_a_probability_that_is_a_last_bit_above_one_stays_a_probability() -> None:
    """A mixture of models may give it. Three rows of certainty 1 in the last of 15 bins, two of
    them right, one of 0.5 in another, right: 3/4 |1 - 2/3| + 1/4 |0.5 - 1|."""
    pytest.importorskip("torchmetrics")
    p = torch.tensor([[1.0000001, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    y = torch.tensor([0, 1, 1, 0])
    assert measured("ece", "binary", p, y) == pytest.approx(0.375)
    assert measured("ece", "multiclass", p, y) == pytest.approx(0.375)


def test_a_class_that_a_client_lacks_is_left_out_of_means(classification: object) -> None:
    """Classes 0 and 1 are ranked without an error, class 2 does not occur."""
    p = torch.tensor([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
    assert measured("auroc", "multiclass", p, torch.tensor([0, 0, 1])) == 1
    assert math.isnan(measured("auroc", "multiclass", p, torch.tensor([0, 0, 0])))
    assert math.isnan(measured("auroc", "binary", p[:, :2], torch.tensor([1, 1, 1])))


def test_a_metric_that_the_task_does_not_have_is_refused() -> None:
    with pytest.raises(fl.BadInput, match="task 'regression' has no metric 'auroc'"):
        fl.run("fedavg", (table(), table()[:, 0]), metrics="auroc", **SMALL)


# ------------------------------------------------------------------ protocols


def scored(rounds: dict[int, tuple[float, ...]], name: str, split: str = "test") -> list[Score]:
    at = At("received", split)  # type: ignore[arg-type]
    return [Score(at, (0, 1), (10, 10), {name: values}) for values in rounds.values()]


def record(t: int, *scores: Score) -> RoundRecord:
    return RoundRecord(t, t, "train", "model", (0, 1), None, 0, 0, 0.1, {}, scores)


@pytest.mark.parametrize(
    ("select", "expected"),
    [("best_test", 2.0), ("last", 4.0), ("best_test_per_client", 1.5)],
)
def test_the_lowest_error_is_the_best_round(select: str, expected: float) -> None:
    rounds = {1: (1.0, 5.0), 2: (2.0, 2.0), 3: (4.0, 4.0)}
    steps = [record(t, s) for t, s in zip(rounds, scored(rounds, "rmse"), strict=True)]
    protocol = Protocol(moment="received", select=select, metric="rmse")  # type: ignore[arg-type]
    chosen = choose(protocol, steps)
    assert (chosen.metric, chosen.value) == ("rmse", expected)


def test_the_worst_tenth_has_the_highest_errors() -> None:
    (score,) = scored({1: (1.0, 5.0)}, "rmse")
    assert score.spread("rmse").worst_decile == 5


def test_clients_without_an_auroc_do_not_count_but_a_broken_model_does() -> None:
    (score,) = scored({1: (0.8, math.nan)}, "auroc")
    assert score.spread("auroc").mean == pytest.approx(0.8)
    (score,) = scored({1: (0.8, math.nan)}, "nll")
    assert math.isnan(score.spread("nll").mean)


def test_a_protocol_selects_by_any_metric() -> None:
    x = table(120)
    y = (x[:, 0] > 0).astype(int)
    pytest.importorskip("torchmetrics")
    split = "merged(train=0.5, val=0.25)"
    protocol = "fedloom(metric=auroc, select=best_val)"
    result = fl.run("fedavg", (x, y), task="binary", protocol=protocol, split=split, **SMALL)
    assert result.summary.metric == "auroc"
    assert all("auroc" in score.metrics for r in result.records for score in r.scores)
    assert "AUROC" in dict(fl.runs.result.summary_rows(result.summary, result.records))


def test_another_protocol_needs_the_metric_to_be_scored() -> None:
    others = fl.OtherProtocols(["fedloom(metric=mae)", "fedloom(metric=r2)"])
    fl.run("fedavg", (table(), table()[:, 0]), watchers=[others], **SMALL)
    assert others.results["fedloom(metric=mae)"].metric == "mae"
    assert "set metrics = 'r2'" in others.refused["fedloom(metric=r2)"]


# ------------------------------------------------------------------ data


def test_targets_follow_from_their_values() -> None:
    x = table(6)
    assert fl.load((x, [0, 1, 0, 1, 0, 1])).targets == "classes"
    assert fl.load((x, x[:, 0])).targets == "numbers"
    assert fl.load((x, x[:, :2])).y.shape == (6, 2)
    assert fl.load((x, [[1, 1, 0]] * 6)).targets == "labels"
    with pytest.raises(fl.BadInput, match=r"y.argmax\(1\), or set task=multilabel"):
        fl.load((x, np.eye(6)))
    assert fl.load((x, [1, 2, 3, 4, 5, 6]), targets="numbers").y.dtype == np.float32


def test_several_columns_of_a_table_are_labels_or_numbers() -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {"a": [0.1, 0.2, 0.3], "fever": [0, 1, 1], "cough": [1, 1, 0], "dose": [5, 6, 7]}
    )
    labels = fl.load(frame, label="fever, cough")
    assert (labels.targets, labels.class_names) == ("labels", ("fever", "cough"))
    assert labels.shape == (2,)
    numbers = fl.load(frame, label="dose", targets="numbers")
    assert (numbers.class_names, numbers.y[:, 0].tolist()) == (("dose",), [5, 6, 7])
    with pytest.raises(fl.BadInput, match="no label column 'fevr'"):
        fl.load(frame, label="fevr, cough")


def test_a_whole_number_is_a_class_unless_the_task_says_otherwise(tmp_path: object) -> None:
    x, y = table(), np.arange(60) % 7
    assert fl.run("fedavg", (x, y), **SMALL).summary.metric == "accuracy"
    assert fl.run("fedavg", (x, y), task="regression", **SMALL).summary.metric == "rmse"
    with pytest.raises(
        fl.BadInput, match="learns numbers, and the targets of the data are classes"
    ):
        fl.run("fedavg", fl.load((x, y)), task="regression", **SMALL)


@pytest.mark.parametrize("partition", ["dirichlet(alpha=0.1)", "pathological(2)", "dominant"])
def test_partitions_by_class_refuse_rows_without(partition: str) -> None:
    name = partition.split("(", maxsplit=1)[0]
    with pytest.raises(fl.PartitionError, match=f"{name} divides rows by their classes"):
        fl.federate((table(), table()[:, 0]), partition, 3)


def test_rows_without_classes_go_to_their_domains_and_users() -> None:
    user = np.arange(60) % 3
    source = fl.Source.from_arrays(table(), table()[:, 0], user=user, domain=user)
    for partition in ("by_user", "by_domain", "iid + scarce(size=5)"):
        assert len(fl.federate(source, partition, 3)) == 3
    with pytest.raises(fl.PartitionError, match="divides a domain by classes"):
        fl.federate(source, "by_domain(per_domain=2)")
    with pytest.raises(fl.BadInput, match="permute_labels changes classes"):
        fl.federate(source, "iid", 3, shift="permute_labels(groups=2)")


def test_counts_are_of_labels_or_of_rows() -> None:
    y = np.array([[1, 1], [0, 1], [1, 1], [0, 0]])
    data = fl.federate((table(4), y), "iid", 2)
    assert data.counts().sum(0).tolist() == [2, 3]
    numbers = fl.federate((table(4), table(4)[:, 0]), "iid", 2)
    assert (numbers.counts().tolist(), numbers.counted) == ([[2], [2]], ("rows",))


# ------------------------------------------------------------------ one's own


@fl.register_task
@dataclass(frozen=True, kw_only=True)
class Counting(fl.Task):
    """Numbers from 0 on: the logarithm of the mean of a Poisson distribution."""

    name: ClassVar[str] = "counting"
    targets: ClassVar[Targets] = "numbers"
    primary: ClassVar[str] = "deviance"
    own: ClassVar[tuple[str, ...]] = ("deviance",)
    lower: ClassVar[tuple[str, ...]] = ("deviance",)
    family: ClassVar = "regression"

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        rows = F.poisson_nll_loss(logits, target, reduction="none").mean(-1)
        return rows if reduction == "none" else rows.mean()

    def predict(self, logits: Tensor) -> Tensor:
        return logits.exp()

    def measure(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        return {"deviance": float((prediction - y * prediction.log()).mean())}


@fl.register_metric("largest_error", higher_is_better=False)
def largest_error(prediction: Tensor, y: Tensor) -> float:
    return float((prediction - y).abs().max())


def test_a_task_and_a_metric_of_ones_own() -> None:
    data = (table(), np.arange(60) % 4)
    result = fl.run("fedrep", data, task=Counting(), metrics=["largest_error"], **SMALL)
    assert result.summary.metric == "deviance"
    assert result.experiment.config.task == "counting"
    assert "largest_error" in result.records[-1].scores[0].metrics
    assert not metric("largest_error").higher_is_better
    assert not metric("deviance").higher_is_better


def test_a_metric_of_ones_own_that_breaks_is_named() -> None:
    fl.register_metric("gives_nothing")(lambda prediction, y: None)
    with pytest.raises(fl.FedloomError, match=r"metric 'gives_nothing': TypeError: float\(\)"):
        measured("gives_nothing", "regression", torch.zeros(1, 1), torch.zeros(1, 1))


def test_a_task_that_is_not_registered_is_refused() -> None:
    class Nameless(fl.Regression):
        pass

    with pytest.raises(fl.BadInput, match="the task Nameless is not registered"):
        fl.run("fedavg", (table(), table()[:, 0]), task=Nameless(), **SMALL)


# ------------------------------------------------------------------ runs


def test_a_run_of_another_task_goes_on_and_is_the_same_with_every_engine(tmp_path: object) -> None:
    data = (table(), table()[:, 0] * 3 + 50)
    whole = fl.run("ditto", data, **{**SMALL, "rounds": 3})
    folder = f"{tmp_path}/run"
    fl.run("ditto", data, out=folder, **SMALL)
    resumed = fl.resume(folder, data=data, rounds=3)
    pooled = fl.run("ditto", data, engine="pool", workers=1, **{**SMALL, "rounds": 3})
    assert whole.summary.state_sha256 == resumed.summary.state_sha256 == pooled.summary.state_sha256
    assert whole.value == resumed.value == pooled.value


def test_diagnostics_refuse_rows_without_classes() -> None:
    with pytest.raises(fl.BadInput, match="diagnostics look at the classes of rows"):
        fl.run("fedavg", (table(), table()[:, 0]), diagnose="cka", **SMALL)
