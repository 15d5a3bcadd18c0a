"""How a run is judged: which model, when, on whom, on which rows, and which round counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedloom.core.method import Method
from fedloom.core.program import Program
from fedloom.core.score import Moment, SplitName
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Protocol:
    """How a run is judged.

    `moment`: the model as *received*, after local training (*trained*), after the method's
    fine-tuning (*adapted*), or *final*: what a client ends up with, which is adapted once at the
    end for methods that adapt and as received for the others. `also`: moments to log beside it.
    `select`: which round is the result; choices that look at test rows say so in their name.
    """

    model: Literal["personal", "global"] = "personal"
    moment: Moment = "final"
    clients: Literal["all", "cohort", "new"] = "all"
    split: Literal["test", "val"] = "test"
    on: Literal["clients", "shared"] = "clients"
    select: Literal[
        "last", "best_val", "best_test", "best_test_per_client", "mean_of_five_best_test"
    ] = "last"
    average: Literal["uniform", "samples"] = "uniform"
    also: tuple[Moment, ...] = ()
    full_last_round: bool = False

    def moment_of(self, method: Method) -> Moment:
        """`final` is `received` for a global model and for a method that does not adapt."""
        settled = self.model == "global" or not method.adapt  # nobody adapts a global model
        return "received" if self.moment == "final" and settled else self.moment

    @property
    def splits(self) -> tuple[SplitName, ...]:
        """Splits to score: the reported one, and validation where it selects."""
        if self.select == "best_val" and self.split != "val":
            return (self.split, "val")
        return (self.split,)

    def check(self, program: Program) -> None:
        """Refuse what this method cannot answer."""
        if self.model == "global" and (why := program.global_model_missing()):
            raise BadInput(
                f"{program.method.name} has no global model ({why}); use a protocol with"
                " model='personal'"
            )
        if self.on == "shared" and self.model != "global":
            raise BadInput("shared test sets are scored with the global model; set model='global'")


PROTOCOLS: Mapping[str, Protocol] = {
    "fedloom": Protocol(also=("trained",)),
    # Only who took part, on the model just trained: no round visits all of many clients.
    "cohort": Protocol(moment="trained", clients="cohort"),
    # Before local training, all clients, samples pooled, best round on test, fine-tuning methods
    # after fine-tuning.
    "dbe": Protocol(select="best_test", average="samples"),
    # The aggregated model on shared test domains, mean of the five best evaluations.
    "fedbr": Protocol(
        model="global", moment="received", on="shared", select="mean_of_five_best_test"
    ),
    # After aggregation, every client's own best round.
    "dualfed": Protocol(moment="received", select="best_test_per_client"),
    # All clients after the final head-only epochs.
    "fedcr": Protocol(),
    # After local training; everybody takes part in the last round.
    "fedpac": Protocol(moment="trained", full_last_round=True),
}
