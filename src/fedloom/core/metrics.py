"""Metrics by name: which way is better, how they are shown, and how they are computed.

`accuracy` and `nll`, and of numbers `rmse` and `mae`, are computed by the tasks themselves, in
microseconds. All others are torchmetrics' (the extra `metrics`), which takes seconds to import and
up to ten milliseconds for one client: they are computed where somebody asks for them. Importing
this module imports neither torch nor torchmetrics.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedloom.errors import BadInput, HookError, needs_extra

if TYPE_CHECKING:
    from torch import Tensor

Family = Literal["multiclass", "binary", "multilabel", "regression"]
"""Which of torchmetrics' functions are meant."""
F = TypeVar("F", bound=Callable[..., float])


@dataclass(frozen=True)
class Metric:
    """What is known of a metric by its name alone, wherever a number of that name is read.

    >>> metric("rmse").higher_is_better, metric("auroc").shown(0.9312)
    (False, '93.12 %')
    """

    name: str
    higher_is_better: bool = True
    share: bool = False
    """Lies between 0 and 1, and is shown in percent."""
    may_be_undefined: bool = False
    """Clients may lack it, as the AUROC of rows of one class: such are left out of means. Without
    this NaN is a model that broke down, and must be seen."""
    function: Callable[[Tensor, Tensor], float] | None = field(default=None, compare=False)
    """Of predictions and targets, where it is a user's own."""

    @property
    def factor(self) -> int:
        """What a value is multiplied by where it is shown."""
        return 100 if self.share else 1

    @property
    def unit(self) -> str:
        """Behind a shown value, or the name at the head of a column."""
        return " %" if self.share else ""

    @property
    def title(self) -> str:
        """At the head of a column or an axis."""
        return f"{words(self.name)}{self.unit}"

    @property
    def head(self) -> str:
        """The same with a capital letter.

        >>> metric("balanced_accuracy").head, metric("rmse").head
        ('Balanced accuracy %', 'RMSE')
        """
        return self.title[0].upper() + self.title[1:]

    @property
    def better(self) -> Literal["high", "low"]:
        """Which end of a column is the best."""
        return "high" if self.higher_is_better else "low"

    @property
    def sign(self) -> int:
        """What makes a value the higher the better."""
        return 1 if self.higher_is_better else -1

    def shown(self, value: float, digits: int = 2) -> str:
        """A value with its unit."""
        return f"{self.factor * value:.{digits}f}{self.unit}"

    def gain(self, value: float) -> float:
        """A number that is the higher the better; of what is not defined, lower than any."""
        if math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value

    def possible(self, value: float) -> bool:
        """Can an honest client have measured this?"""
        if math.isnan(value):
            return self.may_be_undefined or not self.share
        return not self.share or 0 <= value <= 1


_KNOWN: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("accuracy", share=True),
        Metric("balanced_accuracy", share=True),
        Metric("f1", share=True, may_be_undefined=True),
        Metric("auroc", share=True, may_be_undefined=True),
        Metric("average_precision", share=True, may_be_undefined=True),
        Metric("ece", higher_is_better=False, share=True),
        Metric("nll", higher_is_better=False),
        Metric("rmse", higher_is_better=False),
        Metric("mae", higher_is_better=False),
        Metric("r2", may_be_undefined=True),
    )
}
_WORDS = {"auroc": "AUROC", "ece": "ECE", "nll": "NLL", "f1": "F1"}
_WORDS |= {"rmse": "RMSE", "mae": "MAE", "r2": "R2"}


def metric(name: str) -> Metric:
    """What is known of a metric; of an unknown name, that higher is better."""
    return _KNOWN.get(name, Metric(name))


def words(name: str) -> str:
    """A metric as one writes it in a sentence.

    >>> words("auroc"), words("balanced_accuracy")
    ('AUROC', 'balanced accuracy')
    """
    return _WORDS.get(name, name.replace("_", " "))


def register_metric(
    name: str, higher_is_better: bool = True, share: bool = False
) -> Callable[[F], F]:
    """Decorator for a metric of one's own: a function of predictions and targets of one client.

    `share`: it lies between 0 and 1 and is shown in percent. It may give NaN where a client's rows
    do not define it.
    """

    def add(function: F) -> F:
        known = _KNOWN.get(name)
        origin = getattr(known.function, "__qualname__", None) if known else function.__qualname__
        if origin != function.__qualname__:
            raise BadInput(f"two metrics are called {name!r}; rename one of them")
        _KNOWN[name] = Metric(name, higher_is_better, share, True, function)
        return function

    return add


def declare(name: str, higher_is_better: bool) -> None:
    """Note which way a metric that a task brings is better; the ones known by name stay."""
    _KNOWN.setdefault(name, Metric(name, higher_is_better))


def is_known_metric(name: str) -> bool:
    """Is a metric one of those that fedloom brings, and no function that somebody registered?"""
    return name in _KNOWN and _KNOWN[name].function is None


def own_metrics() -> list[str]:
    """Names of the metrics that users registered."""
    return [name for name, known in _KNOWN.items() if known.function is not None]


# ------------------------------------------------------------------ torchmetrics


def measured(name: str, family: Family, prediction: Tensor, y: Tensor) -> float:
    """One metric of one client's rows; NaN where they do not define it: AUROC of a single class,
    R2 of a single row."""
    own = metric(name).function
    if own is not None:
        try:
            return float(own(prediction, y))
        except Exception as error:  # whatever a user's own code raises, or gives in place of one
            raise HookError(f"metric {name!r}", f"{type(error).__name__}: {error}") from error
    with needs_extra("metrics"):
        from torchmetrics import functional
    if family != "regression":
        # A mixture of models may be one by a last bit too much, and then torchmetrics takes all
        # probabilities for logits.
        prediction = prediction.clamp(0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that a client lacks, which are left out here
        return float(_COMPUTED[family][name](functional, prediction, y))


def computed_metrics(family: Family) -> list[str]:
    """Names of torchmetrics' metrics for this kind of prediction."""
    return list(_COMPUTED[family])


def _over_outputs(values: Tensor, defined: Tensor) -> float:
    """Mean of a metric over the classes, labels or numbers for which a client's rows define it."""
    return float(values[defined].mean()) if bool(defined.any()) else math.nan


def _occurring(y: Tensor, classes: int) -> Tensor:
    return y.bincount(minlength=classes) > 0


def _separable(y: Tensor, classes: int) -> Tensor:
    """Classes of which there are rows, and rows of others: a ranking of rows needs both."""
    counts = y.bincount(minlength=classes)
    return (counts > 0) & (counts < len(y))


_Function = Callable[[Any, "Tensor", "Tensor"], Any]


def _multiclass() -> Mapping[str, _Function]:
    def recall(f: Any, p: Tensor, y: Tensor) -> float:
        k = p.shape[-1]
        recalls = f.classification.multiclass_recall(p, y, k, average="none", validate_args=False)
        return _over_outputs(recalls, _occurring(y, k))

    def f1(f: Any, p: Tensor, y: Tensor) -> Any:
        return f.classification.multiclass_f1_score(
            p, y, p.shape[-1], average="macro", validate_args=False
        )

    def auroc(f: Any, p: Tensor, y: Tensor) -> float:
        k = p.shape[-1]
        areas = f.classification.multiclass_auroc(p, y, k, average="none", validate_args=False)
        return _over_outputs(areas, _separable(y, k))

    def average_precision(f: Any, p: Tensor, y: Tensor) -> float:
        k = p.shape[-1]
        values = f.classification.multiclass_average_precision(
            p, y, k, average="none", validate_args=False
        )
        return _over_outputs(values, _occurring(y, k))

    def ece(f: Any, p: Tensor, y: Tensor) -> Any:
        return f.classification.multiclass_calibration_error(
            p, y, p.shape[-1], n_bins=15, validate_args=False
        )

    return {
        "balanced_accuracy": recall,
        "f1": f1,
        "auroc": auroc,
        "average_precision": average_precision,
        "ece": ece,
    }


def _binary() -> Mapping[str, _Function]:
    """Predictions are [n, 2]; the second class is the positive one."""

    def both_present(y: Tensor) -> bool:
        return bool((y == 1).any() and (y == 0).any())

    def f1(f: Any, p: Tensor, y: Tensor) -> Any:
        if not bool((y == 1).any()):
            return math.nan
        return f.classification.binary_f1_score(p.argmax(-1), y, validate_args=False)

    def auroc(f: Any, p: Tensor, y: Tensor) -> Any:
        if not both_present(y):
            return math.nan
        return f.classification.binary_auroc(p[:, 1], y, validate_args=False)

    def average_precision(f: Any, p: Tensor, y: Tensor) -> Any:
        if not bool((y == 1).any()):
            return math.nan
        return f.classification.binary_average_precision(p[:, 1], y, validate_args=False)

    multiclass = _multiclass()
    return {
        "balanced_accuracy": multiclass["balanced_accuracy"],
        "f1": f1,
        "auroc": auroc,
        "average_precision": average_precision,
        "ece": multiclass["ece"],
    }


def _multilabel() -> Mapping[str, _Function]:
    """Predictions and targets are [n, K]; means over the labels that the rows define."""

    def per_label(name: str, needs_negatives: bool) -> _Function:
        def compute(f: Any, p: Tensor, y: Tensor) -> float:
            function = getattr(f.classification, f"multilabel_{name}")
            values = function(p, y.long(), p.shape[-1], average="none", validate_args=False)
            positive = y.sum(0)
            defined = positive > 0
            return _over_outputs(
                values, defined & (positive < len(y)) if needs_negatives else defined
            )

        return compute

    return {
        "f1": per_label("f1_score", False),
        "auroc": per_label("auroc", True),
        "average_precision": per_label("average_precision", False),
    }


def _regression() -> Mapping[str, _Function]:
    def r2(f: Any, p: Tensor, y: Tensor) -> float:
        """By hand: torchmetrics takes sums of squares below 1e-4 for zero, whatever the unit, and
        loses the digits of numbers far from zero."""
        p, y = p.double(), y.double()
        errors, spread = (p - y).square().sum(0), (y - y.mean(0)).square().sum(0)
        return _over_outputs(1 - errors / spread, (y != y[0]).any(0))

    return {"r2": r2}


_COMPUTED: Mapping[str, Mapping[str, _Function]] = {
    "multiclass": _multiclass(),
    "binary": _binary(),
    "multilabel": _multilabel(),
    "regression": _regression(),
}


def listed(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of metrics as they may be written: a list, or words with spaces or commas between.

    >>> listed("auroc, f1"), listed(None)
    (('auroc', 'f1'), ())
    """
    if names is None:
        return ()
    split = names.replace(",", " ").split() if isinstance(names, str) else names
    return tuple(dict.fromkeys(split))
