"""What an upload, or a run's settings, can tell of a site's rows: a fixed vocabulary, in sentences.

A method or term declares what it sends beside a trained model (`Term.reveals`); the others follow
from settings. A site's policy refuses each of them until it is allowed by name. Without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fedloom.errors import BadInput, suggestion

if TYPE_CHECKING:
    from fedloom.core.term import Term

ROWS_UNTOLD = -1
"""In place of a client's number of training rows, where `secure_aggregation` hides it."""

DECLARED: Mapping[str, str] = {
    "row_means": (
        "Means of a few rows of inputs leave the site; enough of them, from several runs, give"
        " every single row and label by linear algebra."
    ),
    "class_means": (
        "A mean or sum of features for each class leaves the site; of a class with one row, that"
        " is the row's own features."
    ),
    "class_counts": (
        "The number of rows of each class leaves the site, which tells whether anybody here has"
        " that class."
    ),
    "class_weights": (
        "Rows of rare classes weigh more in what is sent; of a class with one row, the update is"
        " nearly that of this row alone."
    ),
    "feature_mean": (
        "The mean of the features of all training rows leaves the site; of few rows, it is close"
        " to each of them."
    ),
    "single_models": (
        "Other sites receive this site's model as it is, not a mean over several sites."
    ),
    "row_weights": (
        "Several models leave the site, and each weighs rows by how well it fits them; a model"
        " that fits one row alone carries that row."
    ),
}
"""What a part may declare -> what that tells of the site."""

FROM_SETTINGS: Mapping[str, str] = {
    "unknown": (
        "Nobody declared what this code sends, so it may send anything it can read at this site."
    ),
    "few_rows": "The update of a model trained on few rows is close to those rows.",
    "dense_layers": (
        "Where a single row makes a unit fire that sees whole rows, the change of its weights"
        " divided by that of its bias is the row: a few rows in every round, whatever the batch."
    ),
    "words": "The change of an embedding shows which words occur in this site's texts, also where"
    " text is one of several inputs.",
    "blank_rows": (
        "An augmentation that blanks most inputs leaves one of them to make the update alone."
    ),
    "odd_settings": (
        "Settings far outside of what papers use can make an update depend on one batch or on the"
        " rows of one class."
    ),
    "small_batches": (
        "A step over a few rows is nearly those rows: of one row, the ratio of two gradients of"
        " the first layer is the row itself."
    ),
    "few_steps": (
        "A round of so few steps is a plain sum over known rows; the difference of two such runs"
        " is a single row."
    ),
    "some_rows": (
        "A round trains with some of the rows, and whoever chose the seed knows which; many rounds"
        " give equations for every single row."
    ),
    "small_moves": (
        "Steps so small leave the model where it was, and uploads of many rounds from one model"
        " are equations that can be solved for every single row."
    ),
    "large_moves": (
        "Steps so large undo each other, so that what is sent holds one batch and not all rows."
    ),
    "rare_classes": (
        "A linear model, or a round of few steps over all rows, sends for each class nearly the"
        " sum of its rows; of a class with one row, that is the row."
    ),
    "few_participants": (
        "A mean over one site is that site's own update, for everybody who sees the shared model."
    ),
    "raw_inputs": "Inputs that are not normalised are in their own units wherever they show.",
    "few_test_rows": (
        "A score over a few rows tells their labels, and under many models the rows themselves."
    ),
    "other_rows": (
        "Two runs whose training rows differ by one row give that row away by subtraction; so a"
        " site trains with one choice of rows and no other."
    ),
    "local_files": (
        "The run reads a file by its path on this machine, which may hold what should stay here."
    ),
}
"""What settings of a run tell, found by a policy."""

REVELATIONS: Mapping[str, str] = {**DECLARED, **FROM_SETTINGS}
"""Name -> one sentence on what it tells of a site's rows; the names a site may allow."""


def check_declared(whose: str, names: Iterable[str]) -> None:
    """Refuse a declaration that is not of the vocabulary."""
    for name in names:
        if name not in DECLARED:
            raise BadInput(
                f"{whose} reveals {name!r}, which is no revelation{suggestion(name, DECLARED)};"
                f" they are {', '.join(DECLARED)}"
            )


def check_allowed(names: Iterable[str]) -> None:
    """Refuse to allow something that is not of the vocabulary."""
    for name in names:
        if name not in REVELATIONS:
            raise BadInput(
                f"allow names {name!r}, which is no revelation{suggestion(name, REVELATIONS)};"
                f" they are {', '.join(REVELATIONS)}"
            )


def revealed_by(part: Term) -> tuple[str, ...] | None:
    """What a part declares; None: its class says nothing itself. What a class inherits does not
    count, for it may send more than its parent."""
    return part.reveals if "reveals" in vars(type(part)) else None
