"""What all sites of a federation agree on: Flower's run configuration, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from fedloom.errors import BadInput, suggestion
from fedloom.runs.config import Names, RunConfig, checked

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Of a site or an experiment: it becomes part of paths."""

AT_THE_SITES = (
    *("data", "label", "client", "domain", "inputs"),
    *("partition", "shift", "hostile", "newcomers", "memory", "checkpoint_every"),
)
"""Keys of a run that make no sense where each site brings its own data."""


class Settings(BaseModel):
    """A deployment: the run, and how the server treats its sites.

    >>> Settings.read({"method": "fedper", "batch-size": 16, "sites": "a, b"}).sites
    ('a', 'b')
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str = Field(
        "experiment",
        pattern=f"^{NAME}$",
        description="name under which sites keep their states; a new one starts afresh",
    )
    sites: Names = Field(
        (), description="who may take part, in the order of their ids; empty: who comes first"
    )
    class_names: Names = Field(
        (), description="all classes in their order; empty: those of the schema"
    )
    deadline: float = Field(
        3600, gt=0, description="seconds until a site that has not answered counts as absent"
    )
    patience: float = Field(600, gt=0, description="seconds to wait for min-clients sites")
    most_rows: int = Field(
        1_000_000, ge=1, description="a site that claims more training rows is refused"
    )
    most_rows_ratio: float = Field(
        100, ge=1, description="so many times the median of a round's rows may a site claim"
    )
    most_norm: float = Field(
        10, ge=1, description="so many times the median of a round may an update be in length"
    )
    keep_rounds: int = Field(
        5, ge=2, le=1000, description="rounds by which `deploy rollback` can go back"
    )
    lost_state: Literal["absent", "restart"] = Field(
        "absent", description="a site without the state the server counts on: absent or restart"
    )
    simulated_data: str = Field(
        "digits", description="divided among the nodes of Flower's own simulation (`flwr run`)"
    )
    simulated_partition: str = Field(
        "dirichlet(alpha=0.3)", description="how; real sites bring their own data"
    )
    simulated_policy: str | None = Field(
        None,
        description="a site.toml by its whole path: what its [policy] refuses is not simulated",
    )
    run: RunConfig

    @classmethod
    def read(cls, configuration: Mapping[str, Any]) -> Self:
        """From Flower's flat configuration: keys with dashes; an empty text leaves a key unset."""
        values = {k.replace("-", "_"): v for k, v in configuration.items() if v != ""}
        own = {k: values.pop(k) for k in list(values) if k in cls.model_fields and k != "run"}
        for key in values:
            if key in AT_THE_SITES or key == "engine":
                raise BadInput(f"{key} has no meaning in a deployment; leave it out")
            if key not in RunConfig.model_fields:
                known = [*cls.model_fields, *RunConfig.model_fields]
                raise BadInput(f"unknown key {key!r}{suggestion(key, known)}")
        run = RunConfig.checked({"protocol": "cohort", **values, "engine": "flower"})
        settings = checked(cls, {**own, "run": run})
        places = run.clients or len(settings.sites)
        if not places or places < len(settings.sites):
            raise BadInput(
                f"clients = {run.clients} and {len(settings.sites)} sites; say in clients how many"
                " places there are, or name the sites"
            )
        if run.min_clients > places:
            raise BadInput(f"min_clients = {run.min_clients}, but there are {places} places")
        return settings.model_copy(update={"run": run.changed(clients=places)})
