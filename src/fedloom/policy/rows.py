"""Rules about rows: how many a site has, a step takes, a test scores, and how many sites there are.

Why each limit is there is told in docs/policy.md; the attacks are played in tests/policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedloom.core.metrics import is_known_metric, listed
from fedloom.core.revelations import revealed_by
from fedloom.errors import BadInput
from fedloom.expression import parse, parse_one
from fedloom.policy.facts import SiteFacts
from fedloom.policy.policy import Policy
from fedloom.policy.refusal import Refusal
from fedloom.policy.training import Stretch, rows_trained, stretches
from fedloom.registry import squash
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.core.method import Method

PER_CLASS = {
    "class_means": "sends a mean or sum for each class",
    "class_counts": "sends the number of rows of each class",
    "class_weights": "weighs rows by how rare their class is",
}
"""Revelations that are fine where every class present has enough rows."""
AUGMENTATIONS = ("crop", "flip", "rotation")
READY = ("classification", "binary", "multilabel", "regression")
"""Tasks whose code is fedloom's."""
MOST_WEIGHT = 100
"""By how much one class may count more than another."""
MOST_SCALE = 10
"""How many deviations, as a run sets them, a site's numbers may be from the mean and apart."""
LEAST_PAD = 4
"""A crop's padding that is permitted for every size of images; beyond it, a quarter of a side."""


def revealed(policy: Policy, method: Method, facts: SiteFacts) -> Iterator[Refusal]:
    """What the parts of a method send beside the model."""
    for part in method.parts:
        names = revealed_by(part)
        if names is None:
            yield Refusal(
                "unknown",
                f"{part.name} does not declare what it sends; its author adds reveals = (...)",
            )
        for name in names or ():
            yield from _declared(name, part.name, policy, facts)


def _declared(name: str, part: str, policy: Policy, facts: SiteFacts) -> Iterator[Refusal]:
    if name in PER_CLASS:
        if facts.smallest_class < policy.least_class_rows:
            yield Refusal(
                name,
                f"{part} {PER_CLASS[name]}, and a class present here has fewer than"
                f" {policy.least_class_rows} rows",
                f"{facts.smallest_class} rows",
            )
    elif name == "feature_mean":
        if facts.rows < policy.least_rows:
            yield Refusal(
                name, f"{part} sends a mean of fewer than {policy.least_rows} rows' features"
            )
    else:
        what = {
            "row_means": "means of few rows",
            "single_models": "this site's model to other sites",
            "row_weights": "models that weigh rows by themselves",
        }[name]
        yield Refusal(name, f"{part} sends {what}; choose another method")


def data(policy: Policy, run: RunConfig, facts: SiteFacts) -> Iterator[Refusal]:
    """Which rows there are, and how they are presented."""
    yield from _augmented(run, facts)
    if run.normalize not in policy.normalize and facts.kind != "text":
        yield Refusal(
            "raw_inputs",
            f"normalize = {run.normalize!r} is not permitted here; use one of"
            f" {', '.join(policy.normalize)}",
        )
    same_split = parse_one(run.split) == parse_one(policy.split)
    if not same_split or run.partition_seed != policy.partition_seed:
        yield Refusal(
            "other_rows",
            f"split = {run.split!r}, partition_seed = {run.partition_seed} are not the rows of this"
            f" site's policy; use {policy.split!r} and {policy.partition_seed}",
        )
    for split, rows in (("test", facts.test_rows), ("val", facts.val_rows)):
        if 0 < rows < policy.least_test_rows:
            yield Refusal(
                "few_test_rows",
                f"a score of fewer than {policy.least_test_rows} {split} rows would leave",
                f"{rows} rows",
            )


def task(policy: Policy, run: RunConfig, facts: SiteFacts) -> Iterator[Refusal]:
    """Weights of classes, and the scale of numbers: both say how much single rows count."""
    if run.task == "auto":
        return
    call = parse_one(run.task)
    if squash(call.name) not in map(squash, READY):
        yield Refusal("unknown", f"the task {call.name!r} is code of the run's own")
        return
    if call.args:
        raise BadInput(f"task {run.task!r}: write its settings by name")
    weights: Any = call.kwargs.get("weights")
    if weights is not None and weights != "balanced":
        yield from _declared("class_weights", "task", policy, facts)
        if not min(weights) >= max(weights) / MOST_WEIGHT:
            yield Refusal(
                "some_rows",
                f"task = {run.task!r}: a class would count more than {MOST_WEIGHT} times as much as"
                " another; choose weights nearer to each other",
            )
    outputs = len(facts.target_means)
    means: Any = call.kwargs.get("mean") or (0.0,) * outputs
    deviations: Any = call.kwargs.get("std") or (1.0,) * outputs
    site = zip(facts.target_means, facts.target_deviations, strict=True)
    for mean, std, (own_mean, own_std) in zip(means, deviations, site, strict=False):
        if not max(abs(own_mean - mean), own_std) <= MOST_SCALE * std:
            yield Refusal(
                "large_moves",
                f"task = {run.task!r}: measured by its mean and std, this site's numbers are more"
                f" than {MOST_SCALE} deviations away or apart, and every row would move the model"
                " so much further; choose others",
            )


def metrics(run: RunConfig) -> Iterator[Refusal]:
    """What is measured: a function of the run's own could pack single labels into its number."""
    for name in listed(run.metrics):
        if not is_known_metric(name):
            yield Refusal("unknown", f"the metric {name!r} is code of the run's own")


def _augmented(run: RunConfig, facts: SiteFacts) -> Iterator[Refusal]:
    """A crop keeps most of the image; turns and flips keep nearly all of it. Several crops move an
    image by the sum of their pads."""
    largest, pads = max(LEAST_PAD, min(facts.shape[-2:], default=0) // 4), 0
    for call in parse(run.augment) if run.augment else ():
        if call.name not in AUGMENTATIONS:
            yield Refusal("unknown", f"the augmentation {call.name!r} is code of the run's own")
        pad: Any = call.args[0] if call.args else call.kwargs.get("pad", LEAST_PAD)
        pads += pad if call.name == "crop" else 0
    if not pads <= largest:
        yield Refusal(
            "blank_rows",
            f"crops of {pads} pixels may leave no pixel of an image; use {largest} at most",
        )


def participants(policy: Policy, run: RunConfig) -> Iterator[Refusal]:
    """How many sites a round has at least."""
    cohort = max(1, round(run.participation * (run.clients or 1)))
    fewest = min(run.min_clients, cohort)
    if fewest < policy.least_participants:
        yield Refusal(
            "few_participants",
            f"a round may count with {fewest} site{'s' if fewest > 1 else ''}, fewer than"
            f" {policy.least_participants}; raise min_clients or participation",
        )


def training(policy: Policy, method: Method, facts: SiteFacts) -> Iterator[Refusal]:
    """The rows of a round's steps."""
    rows = rows_trained(method, facts.rows, facts.val_rows)
    if rows < policy.least_rows:
        yield Refusal(
            "few_rows",
            f"fewer than {policy.least_rows} rows would be trained with",
            f"{rows} rows",
        )
    if 0 < facts.rows - rows < policy.least_test_rows:
        yield Refusal(
            "few_test_rows",
            f"{method.name} measures with fewer than {policy.least_test_rows} rows; raise its"
            f" {method.holds_out}",
            f"{facts.rows - rows} rows",
        )
    for stretch in stretches(method, rows):
        yield from _steps(policy, stretch, facts)


def _steps(policy: Policy, stretch: Stretch, facts: SiteFacts) -> Iterator[Refusal]:
    opt = stretch.opt
    if stretch.smallest_batch < policy.least_batch:
        more = "" if opt.batch < policy.least_batch else ", or set drop_last"
        yield Refusal(
            "small_batches",
            f"a step would be over fewer than {policy.least_batch} rows; choose another"
            f" batch_size{more}",
            f"{stretch.rows} rows in batches of {stretch.batch}, the smallest of"
            f" {stretch.smallest_batch}",
        )
    if not stretch.whole_passes and not stretch.all_rows_each_step:
        yield Refusal(
            "some_rows",
            f"steps = {opt.steps}, replacement = {opt.replacement}: a round does not go over all"
            " rows; set epochs in place of steps, and no replacement",
        )
    if stretch.steps < policy.least_steps and not stretch.all_rows_each_step:
        yield Refusal(
            "few_steps",
            f"a round would take fewer than {policy.least_steps} steps; lower batch_size, or raise"
            " epochs",
            f"{stretch.steps} steps",
        )
    few = stretch.steps < policy.least_steps
    if few and stretch.all_rows_each_step and facts.smallest_class < policy.least_class_rows:
        yield Refusal(
            "rare_classes",
            f"a round of few steps over all rows, and a class present here has fewer than"
            f" {policy.least_class_rows} rows; lower batch_size",
            f"{facts.smallest_class} rows",
        )
    if stretch.steps > policy.most_steps:
        yield Refusal(
            "most_steps",
            f"a round would take more than the {policy.most_steps} steps this site permits",
            f"{stretch.steps} steps",
        )
