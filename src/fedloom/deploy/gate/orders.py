"""What a server's message asks for, read without its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedloom.engines.record_names import STATE
from fedloom.errors import BadInput

if TYPE_CHECKING:
    from flwr.app import RecordDict

_DIGEST = r"^([0-9a-f]{64})?$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PlanHead(_Strict):
    """Which step of the run it is."""

    t: int = Field(ge=0)
    kind: Literal["train", "special", "adapt"]
    owner: str = Field(pattern=r"^[A-Za-z0-9_.]{1,100}$")
    cohort: Literal["sample", "all"]
    seed: int
    clients: int = Field(ge=1)


class AskHead(_Strict):
    """Which scores are asked for."""

    moments: list[Literal["received", "trained", "adapted", "final"]] = Field(max_length=4)
    splits: list[Literal["train", "val", "test"]] = Field(max_length=3)
    model: Literal["personal", "global"]
    shared: bool


class OrderHead(_Strict):
    """One order of the server, without its tensors."""

    client: int = Field(ge=0)
    task: Literal["client", "evaluate", "save"]
    new: bool
    own: str = Field(pattern=_DIGEST)
    plan: PlanHead
    ask: AskHead | None

    @property
    def counted_as(self) -> str:
        """The counter of such orders."""
        return f"{self.task} {self.plan.kind}"

    @property
    def step(self) -> str:
        """The step of the run, as the form of what may leave names it."""
        return f"{self.plan.kind} {self.plan.owner}"


def read_order_head(records: RecordDict) -> OrderHead:
    """Refuses a message with anything else than an order has."""
    configs = {name: dict(record) for name, record in records.config_records.items()}
    arrays = {name for name in records.array_records if name.startswith(STATE)}
    if strange := set(records) - {"head", "plan", "ask"} - arrays:
        raise BadInput(f"the server's message has an unknown record {min(strange)[:80]!r}")
    return OrderHead.model_validate(
        {**_mapping(configs, "head"), "plan": _mapping(configs, "plan"), "ask": configs.get("ask")}
    )


def order_digest(records: RecordDict, data: str) -> str:
    """Of an order with its tensors, and of the version of the site's data: asked for twice, it has
    the same answer, and nothing more is learnt."""
    return sha256(f"{records.object_id} {data}".encode()).hexdigest()


def _mapping(configs: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in configs:
        raise BadInput(f"the server's message has no record {name!r}")
    return configs[name]
