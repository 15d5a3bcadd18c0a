"""How a run is judged: which model, when, on whom, on which rows, and which round counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from fedloom.core.score import Moment
from fedloom.errors import BadInput, UnknownName, suggestion
from fedloom.expression import parse_one, written

if TYPE_CHECKING:  # a run's configuration reads protocols, and must not import torch
    from fedloom.core.program import Program

_LEAST_EPOCHS = {"head_epochs": 0, "newcomer_epochs": 1}


@dataclass(frozen=True)
class Protocol:
    """How a run is judged.

    >>> str(Protocol(moment="received", select="best_val"))
    "fedloom(moment='received', select='best_val')"
    """

    model: Literal["personal", "global", "global_if_any"] = "personal"
    """The client's own model, the averaged one, or *global_if_any*: the averaged one where the
    method has one, else the client's own."""
    moment: Literal["received", "trained", "adapted", "final", "personalized"] = "final"
    """The model as *received*; after the round's local training (*trained*); after fine-tuning, on
    a copy in any round (*adapted*); what a client ends up with (*final*: fine-tuned once, at the
    end, where there is fine-tuning, else as received). *personalized* is adapted where there is
    fine-tuning, trained where clients keep something personal, received where all hold the same
    model."""
    clients: Literal["all", "cohort", "new"] = "all"
    """Everybody, this round's participants, or clients that never trained."""
    split: Literal["test", "val"] = "test"
    """Which rows are the result; validation rows are scored beside it wherever there are any."""
    on: Literal["clients", "shared", "shared_if_any"] = "clients"
    """Each client's own rows, test sets that belong to nobody, or (*shared_if_any*) these where the
    split made some."""
    select: Literal[
        "last", "best_val", "best_test", "best_test_per_client", "mean_of_five_best_test"
    ] = "last"
    """Which round is the result; choices that look at test rows say so in their name."""
    metric: str | None = None
    """The metric that is the result, and by which `select` chooses; none: the task's."""
    average: Literal["uniform", "samples"] = "uniform"
    """Clients alike, or by their number of rows."""
    also: tuple[Moment, ...] = ("received", "trained")
    """Moments that are logged beside it; `none` logs only what the result and its curve need."""
    full_last_round: bool = False
    """Everybody takes part in the last round."""
    head_epochs: int = 0
    """Before the final test every client trains only its head so many epochs, in place of the
    method's own fine-tuning; 0: what the method does."""
    newcomer_epochs: int | None = None
    """Epochs that a client which never trained trains before its test; none: as the others."""

    def __post_init__(self) -> None:
        for name, choices in _choices().items():
            _check_word(name, getattr(self, name), choices)
        object.__setattr__(self, "also", _moments(self.also))
        if not isinstance(self.full_last_round, bool):
            raise BadInput(
                f"protocol: full_last_round = {self.full_last_round!r} is neither true nor false"
            )
        if self.metric is not None and not isinstance(self.metric, str):
            raise BadInput(f"protocol: metric = {self.metric!r} is no name of a metric")
        for name, least in _LEAST_EPOCHS.items():
            _check_epochs(name, getattr(self, name), least)
        if self.on == "shared" and self.split != "test":
            raise BadInput("protocol: shared test sets have no validation rows; leave out split")
        if self.on == "shared" and self.clients == "new":
            raise BadInput(
                "protocol: clients=new tests new participants on their own rows; set on=clients"
            )

    def __str__(self) -> str:
        """The expression that reads back to the same protocol."""
        return written(self, "fedloom")

    def settled(self, program: Program, shared_tests: bool) -> Protocol:
        """The same in terms of one method and its data: *if_any*, *final* and *personalized*
        become what they stand for there, and so does the metric; what the method cannot answer is
        refused."""
        model = self._settled_model(program)
        on = self.on
        if on == "shared_if_any":
            on = "shared" if shared_tests and self.clients != "new" else "clients"
        moment = self._settled_moment(program, model)
        metric = self.metric or program.task.primary
        return replace(self, model=model, on=on, moment=moment, metric=metric)

    def _settled_model(self, program: Program) -> Literal["personal", "global"]:
        if self.model == "personal":
            return "personal"
        missing = program.global_model_missing()
        if not missing:
            if self.head_epochs:
                raise BadInput(
                    f"head_epochs = {self.head_epochs} trains heads of the clients, and this"
                    " protocol tests the global model; set model=personal, or head_epochs=0"
                )
            return "global"
        if self.model == "global":
            raise BadInput(
                f"{program.method.name} has no global model ({missing}); use a protocol with"
                " model=personal or model=global_if_any"
            )
        return "personal"

    def _settled_moment(self, program: Program, model: str) -> Moment:
        if model == "global":
            if self.moment in ("trained", "adapted"):
                raise BadInput(
                    f"a global model is tested as received, and moment={self.moment} is of the"
                    " clients' own models; set model=personal"
                )
            return "received"
        if self.clients == "new":
            return "received" if self.moment == "received" else "adapted"
        if self.moment == "final":
            return "final" if program.adapt else "received"
        if self.moment == "personalized":
            if program.adapt:
                return "adapted"
            return "trained" if program.keeps_personal_model() else "received"
        return self.moment


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """Field -> its words, for the fields that take one of a few."""
    types = get_type_hints(Protocol)
    return {name: get_args(of) for name, of in types.items() if get_origin(of) is Literal}


def _check_word(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = suggestion(str(value), choices)
        raise BadInput(f"protocol: {name} = {value!r} is unknown{near}")


def _check_epochs(name: str, value: object, least: int) -> None:
    if value is None and name == "newcomer_epochs":
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"protocol: {name} = {value!r} is not a number of epochs, {least} or more")


def _moments(also: object) -> tuple[Moment, ...]:
    """The moments of `also` as they may be written: a list, one word, or none."""
    listed: Any = () if also is None else (also,) if isinstance(also, str) else also
    if not isinstance(listed, tuple | list):
        raise BadInput(f"protocol: also = {also!r} is no list of moments; write also=[trained]")
    for moment in listed:
        _check_word("also", moment, get_args(Moment))
    return tuple(listed)


PROTOCOLS: Mapping[str, Protocol] = {
    "fedloom": Protocol(),
    # Only who took part, on the model just trained: no round visits all of many clients, and no
    # message is sent for a test alone.
    "cohort": Protocol(moment="trained", clients="cohort", also=()),
    # Section 5.1: clients averaged alike, before local training; FedBABU and Per-FedAvg after
    # fine-tuning. Appendix D.4: new participants train ten epochs.
    "dbe": Protocol(select="best_test", newcomer_epochs=10),
    # Table 1: the aggregated model on shared test domains, mean of the five best evaluations; of
    # Local, which aggregates nothing, the clients' models. PACS has no shared tests (Table 13).
    "fedbr": Protocol(
        model="global_if_any",
        moment="received",
        on="shared_if_any",
        select="mean_of_five_best_test",
    ),
    # Section 5.3: after aggregation, every client's own best round.
    "dualfed": Protocol(moment="received", select="best_test_per_client"),
    # Section 6.1: everybody trains its head for ten epochs before the final test.
    "fedcr": Protocol(head_epochs=10),
    # Tables 1 and 4: FedAvg as received and FedAvg-FT after tuning, personal models after local
    # training; everybody takes part in the last round.
    "fedpac": Protocol(moment="personalized", full_last_round=True),
}


def parse_protocol(text: str) -> Protocol:
    """A protocol from its expression: a preset, and the fields that differ from it.

    >>> parse_protocol("fedpac(moment=received)").full_last_round
    True
    """
    call = parse_one(text)
    if call.name not in PROTOCOLS:
        raise UnknownName("protocol", call.name, PROTOCOLS)
    if call.args:
        raise BadInput(f"protocol {text!r}: write fields by name, for instance moment=received")
    known = [field.name for field in fields(Protocol)]
    for name in call.kwargs:
        if name not in known:
            raise BadInput(f"protocol {call.name!r} has no field {name!r}{suggestion(name, known)}")
    return replace(PROTOCOLS[call.name], **call.kwargs)
