"""Limits that do not depend on a method: code, files, rounds, bytes, hours, experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from fedloom.extensions import Place, is_file, source_of
from fedloom.policy.networks import networks
from fedloom.policy.policy import Policy
from fedloom.policy.quantities import Hours, size_text
from fedloom.policy.refusal import Refusal
from fedloom.runs.config import OF_PACKAGE, RunConfig


def limits(policy: Policy, run: RunConfig) -> Iterator[Refusal]:
    """Of a run's settings."""
    if run.rounds > policy.most_rounds:
        yield Refusal(
            "most_rounds",
            f"rounds = {run.rounds} is more than the {policy.most_rounds} this site permits",
        )
    if run.image_size is not None and run.image_size > policy.most_image_size:
        yield Refusal(
            "most_image_size",
            f"image_size = {run.image_size} is more than the {policy.most_image_size} pixels this"
            " site permits",
        )
    yield from _modules(policy, run)
    yield from _files(run)


def _modules(policy: Policy, run: RunConfig) -> Iterator[Refusal]:
    for name in modules_of(run):
        if policy.modules and name not in policy.modules:
            yield Refusal(
                "modules", f"the module {name!r} is not one of those this site's policy lists"
            )


def _files(run: RunConfig) -> Iterator[Refusal]:
    """Files that a run reads by their path where it trains. Weights that a package brings are
    known by name and digest, and no path leads elsewhere."""
    if run.start is not None and not run.start.startswith(OF_PACKAGE):
        yield Refusal(
            "local_files", f"start = {run.start!r} reads a file of this machine; leave it out"
        )
    for spec in run.imports:
        if is_file(spec):
            yield Refusal(
                "local_files",
                f"imports = {spec!r} runs a file of this machine; name a module that the app has",
            )


def modules_of(run: RunConfig) -> list[str]:
    """Names of the modules whose code a run brings: its imports, and places of its models."""
    places = [place.where for model in networks(run) if (place := Place.of(model)) is not None]
    return list(dict.fromkeys(source_of(spec)[0] for spec in (*run.imports, *places)))


def refused_now(policy: Policy, now: datetime) -> list[Refusal]:
    """Whether this is a time of the day at which the site trains; `now` is its local time."""
    if not policy.hours or now.time() in Hours.read(policy.hours):
        return []
    return [Refusal("hours", f"this site trains from {policy.hours} by its clock, and not now")]


def app_refusals(policy: Policy, sha256: str) -> list[Refusal]:
    """Of an app by the digest of its bytes."""
    if not policy.apps or sha256 in policy.apps:
        return []
    return [Refusal("apps", f"the app {sha256[:12]} is not one of those this site's policy lists")]


def module_refusals(policy: Policy, sha256: Mapping[str, str]) -> list[Refusal]:
    """Of the modules that a run imports, by the digests of their files as they are here."""
    return [
        Refusal(
            "modules",
            f"the module {name!r} ({digest[:12]}) is not as this site's policy lists it",
        )
        for name, digest in sha256.items()
        if policy.modules and policy.modules.get(name) != digest
    ]


def byte_refusals(policy: Policy, this_round: int, in_all: int) -> list[Refusal]:
    """Of what would leave in a round, and in an experiment with this round."""
    exceeded = [
        ("most_bytes_per_round", this_round, policy.most_bytes_per_round, "in a round"),
        ("most_bytes", in_all, policy.most_bytes, "in an experiment"),
    ]
    return [
        Refusal(rule, f"{size_text(sent)} {when} are more than the {size_text(most)} permitted")
        for rule, sent, most, when in exceeded
        if sent > most
    ]


def experiment_refusals(policy: Policy, begun: int) -> list[Refusal]:
    """Of another experiment where so many have begun at this site."""
    if begun < policy.most_experiments:
        return []
    return [
        Refusal(
            "most_experiments",
            f"{policy.most_experiments} experiments have begun at this site, as many as it permits",
        )
    ]
