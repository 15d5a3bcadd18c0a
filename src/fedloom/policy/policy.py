"""A site's own rules: the table `[policy]` of its `site.toml`, with safe defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from fedloom.core.revelations import check_allowed
from fedloom.errors import BadInput, suggestion
from fedloom.files import read_toml
from fedloom.policy.quantities import Hours, size
from fedloom.runs.config import checked

Normalizing = Literal["auto", "half", "channel", "site", "none"]
Range = bool | int | float | str | tuple[bool | int | float | str, ...]
"""What a setting may be: two numbers are the smallest and the largest; otherwise one of these."""
Size = Annotated[int, BeforeValidator(size), Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Policy(BaseModel):
    """What a site lets a federation do with its rows.

    Whatever a run's settings would reveal beyond these limits is refused, unless `allow` names it
    (`fedloom.core.revelations`).

    >>> Policy(most_bytes_per_round="20 MB").most_bytes_per_round
    20000000
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    approval: Literal["ask", "policy"] = Field(
        "ask",
        description="ask: every proposal waits for the operator; policy: what these rules permit"
        " passes without asking if its app is one of apps",
    )
    allow: tuple[str, ...] = Field(
        (), description="revelations that are permitted, by name; docs/policy.md lists them"
    )
    least_rows: int = Field(50, ge=1, description="training rows this site must have")
    least_batch: int = Field(8, ge=1, description="rows of the smallest batch of a round")
    least_steps: int = Field(
        4, ge=1, description="steps of a round whose steps do not all go over every row"
    )
    least_class_rows: int = Field(
        10, ge=1, description="rows of every class present, where something is sent per class"
    )
    least_test_rows: int = Field(10, ge=1, description="rows of a test that is scored")
    least_participants: int = Field(2, ge=1, description="sites whose answers make a round count")
    least_lr: float = Field(
        0.005, ge=0, description="smallest learning rate of sgd; a hundredth of it of the others"
    )
    most_lr: float = Field(1.0, gt=0, description="largest learning rate")
    normalize: tuple[Normalizing, ...] = Field(
        ("auto", "half", "channel", "site"), description="ways of normalising inputs"
    )
    split: str = Field(
        "merged(train=0.75)", min_length=1, description="the one division into train, val and test"
    )
    partition_seed: int = Field(0, description="the one seed of that division")
    methods: Mapping[str, Mapping[str, Range]] = Field(
        {}, description="methods and terms that are permitted, with ranges of settings; {}: any"
    )
    models: tuple[str, ...] = Field((), description="models that are permitted; empty: any")
    privacy: Literal["none", "client", "example"] = Field(
        "none",
        description="kind of differential privacy that a run must have",
    )
    least_noise: float = Field(
        0, ge=0, description="smallest noise of a run with privacy, in units of its clip"
    )
    most_epsilon: float = Field(
        0, ge=0, description="largest epsilon of a whole run towards the server; 0: any"
    )
    most_delta: float = Field(1e-3, gt=0, lt=1, description="largest delta of a run with privacy")
    most_rounds: int = Field(1000, ge=1, description="rounds of an experiment")
    most_steps: int = Field(100_000, ge=1, description="steps of a round")
    most_parameters: int = Field(
        200_000_000, ge=1, description="numbers of all networks of a run together"
    )
    most_image_size: int = Field(1024, ge=1, description="pixels of a side that images become")
    most_experiments: int = Field(
        20, ge=1, description="experiments that may ever begin at this site"
    )
    most_bytes_per_round: Size = Field(
        500_000_000, description="what may leave in a round, as bytes or text such as '200 MB'"
    )
    most_bytes: Size = Field(
        100_000_000_000, description="what may leave in an experiment, as bytes or text"
    )
    hours: str = Field("", description="when runs may train, e.g. 22:00-06:00, local time")
    apps: tuple[Sha256, ...] = Field(
        (),
        description="sha256 of the apps that are permitted; empty: each is approved when it"
        " first comes",
    )
    modules: Mapping[str, Sha256] = Field(
        {}, description="modules that imports may name, with their sha256; {}: as for apps"
    )

    @field_validator("allow")
    @classmethod
    def _names_of_revelations(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_allowed(names)
        return names

    @field_validator("hours")
    @classmethod
    def _hours_of_the_day(cls, text: str) -> str:
        if text:
            Hours.read(text)
        return text

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """The table `[policy]` of a site's file; its other keys are not looked at."""
        return cls.of(read_toml(Path(file), "the site's configuration"), file)

    @classmethod
    def of(cls, site: Mapping[str, Any], file: str | Path) -> Self:
        """The table in what a site's file says; the first thing that is wrong is one sentence."""
        table = site.get("policy", {})
        if not isinstance(table, dict):
            raise BadInput(f"policy = {table!r} in {file} is no table; write [policy]")
        for key in table:
            if key not in cls.model_fields:
                near = suggestion(key, cls.model_fields)
                raise BadInput(f"unknown key {key!r} in [policy] of {file}{near}")
        return cls.checked(**table)

    @classmethod
    def checked(cls, **keys: Any) -> Self:
        """A policy with these keys and the defaults of the others; what is wrong is a sentence."""
        return checked(cls, keys)

    @property
    def pins_code(self) -> bool:
        """Does it name apps or modules by their sha256?"""
        return bool(self.apps or self.modules)

    def allows(self, revelation: str) -> bool:
        """Is it permitted by name?"""
        return revelation in self.allow
