"""What is learned: what a row's target is, the loss, what a network's output means, the metrics.

A task is a frozen dataclass with plain fields, so that it is an expression, as a method is:
`classification(smoothing=0.1)`. One of a user's own is a subclass of `Task` in one file, under the
decorator `register_task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.metrics import Family, computed_metrics, declare, measured, own_metrics
from fedloom.errors import BadInput, suggestion
from fedloom.expression import parse_one, written
from fedloom.registry import Registry

Targets = Literal["classes", "labels", "numbers"]
"""What a row is to be told: one class (int64 [n]), any of K labels (0 or 1, float32 [n, K]), or
numbers (float32 [n, d])."""
Need = Literal["classes", "plain_loss", "linear_loss"]
"""What a method or term may need of a task (`Term.needs`). `classes`: every row has one class, and
the head an output for each. `plain_loss`: the method computes its own loss of these classes, and
would pass over weights and smoothing. `linear_loss`: the loss of a mixture of two targets is the
mixture of their losses."""
WHAT: dict[Need, str] = {
    "classes": "one class for every row and an output of the head for each class",
    "plain_loss": "classes without weights or smoothing, because its loss is its own",
    "linear_loss": "a loss that is linear in the target",
}

tasks = Registry("task", None, "fedloom.tasks")
"""Tasks by name."""
register_task = tasks
"""Decorator for a task of one's own: a frozen dataclass that is a `Task`."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned. A subclass says the target, the loss, the prediction and its scores."""

    name: ClassVar[str] = "task"
    """In expressions."""
    targets: ClassVar[Targets] = "classes"
    """What a row's target is."""
    primary: ClassVar[str] = "accuracy"
    """The metric that is the result of a run, where its protocol names none."""
    own: ClassVar[tuple[str, ...]] = ("accuracy", "nll")
    """The metrics of `measure`, which are always scored."""
    lower: ClassVar[tuple[str, ...]] = ()
    """Of metrics that it brings itself, those of which lower is better."""
    family: ClassVar[Family] = "multiclass"
    """Which of torchmetrics' functions its predictions suit."""
    metrics: tuple[str, ...] = ()
    """Further metrics, by name, that are scored beside its own."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in cls.own:
            declare(name, higher_is_better=name not in cls.lower)

    @property
    def provides(self) -> frozenset[Need]:
        """What methods may ask of it."""
        return frozenset()

    def fitted(self, train: Tensor | None, outputs: int) -> Self:
        """The same with what follows from the targets of all training rows; None: they are at
        their sites. What cannot be used with so many outputs is refused."""
        return self

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """The training loss, of one batch or (`reduction="none"`) of each row, [n]. `target` is a
        row's own, or a mixture of several rows'; a mixture of classes is [n, K]."""
        raise NotImplementedError

    def predict(self, logits: Tensor) -> Tensor:
        """What a network's output means: probabilities [n, K], or numbers [n, d]."""
        raise NotImplementedError

    def measure(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        """The task's own metrics of one client's predictions."""
        raise NotImplementedError

    def made_up(self, codes: Tensor, outputs: int) -> Tensor:
        """Targets for made-up rows that are numbered by classes."""
        return codes

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        """Every metric of one client's predictions, by name."""
        further = {name: measured(name, self.family, prediction, y) for name in self.metrics}
        return {**self.measure(prediction, y), **further}

    def scoring(self, names: Sequence[str]) -> Self:
        """The same that also scores these metrics; refuses one that it does not have."""
        known = [*self.own, *computed_metrics(self.family), *own_metrics()]
        for name in names:
            if name not in known:
                raise BadInput(
                    f"task {self.name!r} has no metric {name!r}{suggestion(name, known)}"
                )
        further = [*self.metrics, *(name for name in names if name not in self.own)]
        return replace(self, metrics=tuple(dict.fromkeys(further)))

    def __str__(self) -> str:
        """The expression that reads back to the same task."""
        return written(self, self.name, without=["metrics"])


def parse_task(text: str) -> Task:
    """A task from its expression.

    >>> parse_task("classification(smoothing=0.1)").smoothing
    0.1
    """
    task: Task = tasks.build(parse_one(text))
    return task


def check_registered(task: Task) -> Task:
    """The task, if its expression reads back to it in any process of a run."""
    if task.name not in tasks or tasks[task.name] is not type(task):
        raise BadInput(
            f"the task {type(task).__name__} is not registered; write @fedloom.register_task before"
            " its class, and call it by a name of its own"
        )
    return task


@tasks
@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Every row has one of K classes: softmax and cross-entropy.

    `smoothing` takes so much of a row's label and spreads it over all classes. `weights` weigh the
    loss of each class, in the order of the class names; "balanced" is n / (K n_c), by the training
    rows of all clients. Weights of sites whose rows nobody can count are written as numbers.
    """

    name: ClassVar[str] = "classification"
    smoothing: float = 0.0
    weights: Literal["balanced"] | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise BadInput(
                f"{self.name}: smoothing is a share of a label, 0 or more and below 1, not"
                f" {self.smoothing}"
            )
        if isinstance(self.weights, tuple) and not (min(self.weights, default=0) > 0):
            raise BadInput(f"{self.name}: weights are numbers above 0, not {list(self.weights)}")

    @property
    def provides(self) -> frozenset[Need]:
        plain: set[Need] = {"plain_loss"} if self.plain else set()
        return frozenset({"classes", "linear_loss", *plain})

    @property
    def plain(self) -> bool:
        """Is the loss of a batch the mean of its rows' cross-entropies?"""
        return not self.smoothing and self.weights is None

    def fitted(self, train: Tensor | None, outputs: int) -> Self:
        if self.weights == "balanced":
            if train is None:
                raise BadInput(
                    f"{self.name}: nobody can count the classes of sites' rows; write weights=[...]"
                    " with a number for each class"
                )
            counts = train.bincount(minlength=outputs).double()
            balanced = len(train) / (outputs * counts.clamp_min(1))
            return replace(self, weights=tuple(round(w, 6) for w in balanced.tolist()))
        if self.weights is not None and len(self.weights) != outputs:
            raise BadInput(
                f"{self.name}: {len(self.weights)} weights for {outputs} classes; write one for"
                " each, in the order of the class names"
            )
        return self

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        weight = None
        if self.weights is not None:
            weight = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device)
        return F.cross_entropy(
            logits, target, weight, reduction=reduction, label_smoothing=self.smoothing
        )

    def predict(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def measure(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        correct = (prediction.argmax(-1) == y).double().mean()
        likelihood = prediction.gather(-1, y[:, None]).clamp_min(1e-12)
        return {"accuracy": float(correct), "nll": float(-likelihood.double().log().mean())}


@tasks
@dataclass(frozen=True, kw_only=True)
class Binary(Classification):
    """Two classes, of which the second in the order of names is the positive one.

    The head has two outputs, as for any classes, so that every method for classes works; this is
    the same model as one output with a sigmoid. F1, AUROC and average precision are the positive
    class's; in `classification` they are means over classes.
    """

    name: ClassVar[str] = "binary"
    family: ClassVar[Family] = "binary"

    def fitted(self, train: Tensor | None, outputs: int) -> Self:
        if outputs != 2:
            raise BadInput(f"task 'binary' has two classes, and the data {outputs}; set task=auto")
        return super().fitted(train, outputs)


@tasks
@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task):
    """Every row has any of K labels: a sigmoid for each and binary cross-entropy.

    A loss is the mean over labels. `accuracy` is the share of single labels that are right at 0.5.
    """

    name: ClassVar[str] = "multilabel"
    targets: ClassVar[Targets] = "labels"
    family: ClassVar[Family] = "multilabel"

    @property
    def provides(self) -> frozenset[Need]:
        return frozenset({"linear_loss"})

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        rows = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
        return rows if reduction == "none" else rows.mean()

    def predict(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def measure(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        correct = ((prediction > 0.5) == (y > 0.5)).double().mean()
        likelihood = torch.where(y > 0.5, prediction, 1 - prediction).clamp_min(1e-12)
        return {"accuracy": float(correct), "nll": float(-likelihood.double().log().mean())}

    def made_up(self, codes: Tensor, outputs: int) -> Tensor:
        return F.one_hot(codes, outputs).float()


@tasks
@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """Every row has d numbers.

    The network learns (y - mean) / std, and its predictions are in the units of the data again.
    Without `mean` and `std`, one for each number, they are those of the training rows of all
    clients; sites whose rows nobody sees are told both, or `normalize=false`. `error` is squared,
    absolute or huber (squared below one deviation, absolute beyond), a mean over the numbers.
    """

    name: ClassVar[str] = "regression"
    targets: ClassVar[Targets] = "numbers"
    primary: ClassVar[str] = "rmse"
    own: ClassVar[tuple[str, ...]] = ("rmse", "mae")
    family: ClassVar[Family] = "regression"
    error: Literal["squared", "absolute", "huber"] = "squared"
    normalize: bool = True
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise BadInput("regression: mean and std belong together; give both, or none")
        if self.std is not None and not (min(self.std, default=0) > 0):
            raise BadInput(f"regression: std is numbers above 0, not {list(self.std)}")

    def fitted(self, train: Tensor | None, outputs: int) -> Self:
        if not self.normalize:
            return self
        if self.mean is None:
            if train is None:
                raise BadInput(
                    "regression: nobody sees the targets of all sites; write mean=[...], std=[...],"
                    " or normalize=false"
                )
            mean, std = train.double().mean(0), train.double().std(0, unbiased=False)
            std = torch.where(std > 0, std, torch.ones_like(std))
            return replace(self, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
        if len(self.mean) != outputs or len(self.std or ()) != outputs:
            raise BadInput(
                f"regression: {len(self.mean)} means and {len(self.std or ())} deviations for"
                f" {outputs} numbers; write one for each"
            )
        return self

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        if self.normalize and self.mean is not None:
            target = (target - logits.new_tensor(self.mean)) / logits.new_tensor(self.std)
        if self.error == "squared":
            errors = F.mse_loss(logits, target, reduction="none")
        elif self.error == "absolute":
            errors = F.l1_loss(logits, target, reduction="none")
        else:
            errors = F.huber_loss(logits, target, reduction="none")
        rows = errors.mean(-1)
        return rows if reduction == "none" else rows.mean()

    def predict(self, logits: Tensor) -> Tensor:
        if not self.normalize or self.mean is None:
            return logits
        return logits * logits.new_tensor(self.std) + logits.new_tensor(self.mean)

    def measure(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        error = (prediction - y).double()
        return {
            "rmse": float(error.square().mean().sqrt()),
            "mae": float(error.abs().mean()),
        }

    def made_up(self, codes: Tensor, outputs: int) -> Tensor:
        return codes.float()[:, None].expand(-1, outputs)


def task_for(targets: Targets) -> Task:
    """What `task="auto"` stands for."""
    ready: dict[Targets, Task] = {
        "classes": Classification(),
        "labels": MultiLabel(),
        "numbers": Regression(),
    }
    return ready[targets]
