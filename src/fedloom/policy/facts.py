"""What a site's rules are judged by beside a run's settings: how many rows of what it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.core.fields import Fields
    from fedloom.data import FederatedData
    from fedloom.data.source import Targets


@dataclass(frozen=True)
class SiteFacts:
    """A site's data in numbers, as a run's settings would divide it. They stay at the site."""

    rows: int
    """Training rows."""
    smallest_class: int
    """Training rows of the class that has fewest, of those that have any."""
    kind: str
    """What an input is: image, signal, table, text, or several of them (fields)."""
    classes: int
    """How many classes the federation has; of other targets, labels or numbers."""
    shape: tuple[int, ...] = ()
    """Of one input."""
    vocabulary: int = 0
    """Words that texts may have; 0: the inputs are no texts."""
    test_rows: int = 0
    """Rows that are scored as test; 0: none are."""
    val_rows: int = 0
    """The same of validation."""
    targets: Targets = "classes"
    """What a row's target is."""
    target_means: tuple[float, ...] = ()
    """Of numbers to predict, over the training rows."""
    target_deviations: tuple[float, ...] = ()
    """The same."""
    fields: Fields = ()
    """The inputs that a row divides into, where there are several."""


def facts_of(data: FederatedData, cid: int = 0) -> SiteFacts:
    """Of one client of divided data; a site's own data has one client."""
    site = data.client(cid)
    y, numbers = site.train.y, data.targets == "numbers"
    return SiteFacts(
        rows=len(site.train),
        smallest_class=_smallest_class(y, data.targets),
        kind=data.kind,
        classes=data.classes,
        shape=data.shape,
        vocabulary=data.vocabulary,
        fields=data.fields,
        test_rows=0 if site.test is None else len(site.test),
        val_rows=0 if site.val is None else len(site.val),
        targets=data.targets,
        target_means=tuple(y.mean(0).tolist()) if numbers else (),
        target_deviations=tuple(y.std(0, unbiased=False).tolist()) if numbers else (),
    )


def _smallest_class(y: Tensor, targets: Targets) -> int:
    """Rows of the rarest class or label that is present; of numbers, which have none, all rows."""
    if targets == "numbers":
        return len(y)
    counts = y.bincount() if targets == "classes" else y.sum(0).long()
    present = counts[counts > 0]
    return int(present.min()) if len(present) else len(y)
