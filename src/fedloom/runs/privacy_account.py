"""What a run with `privacy` has told so far, client by client, and when its budget ends it.

Nothing is taken off for clients or rows that were drawn at random: whoever takes part counts in
full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedloom.core.accountant import epsilon, mechanisms_told
from fedloom.core.aggregation import Mean
from fedloom.core.compression import NONE
from fedloom.core.message import Plan
from fedloom.core.privacy import ClientPrivacy, Privacy
from fedloom.core.program import Program
from fedloom.data import RemoteData
from fedloom.errors import BadInput
from fedloom.record import PrivacySpent, RoundRecord
from fedloom.runs.experiment import Experiment

Answers = dict[int, int | None]
"""Client -> the training rows it stated; None: it did not say."""


class PrivacyAccount:
    """The mechanisms of every client, as the steps of a run add to them."""

    def __init__(self, program: Program, privacy: Privacy, records: Iterable[RoundRecord] = ()):
        self._program, self.privacy = program, privacy
        self.mechanisms = Counter[int]()
        """Client -> releases that somebody saw who sees single uploads."""
        self._told_by_mean: dict[int, float] = {}
        self.repeated = Counter[int]()
        """Of answers to a round that was given up and is asked again: they had left all the
        same."""
        for record in records:
            if record.privacy is not None:
                self.accept(record.privacy)

    @classmethod
    def of(cls, program: Program, records: Iterable[RoundRecord] = ()) -> PrivacyAccount | None:
        """After these records; None of a run without privacy."""
        if program.privacy is None:
            return None
        return cls(program, program.privacy, records)

    def answered(self, plan: Plan, answers: Answers) -> dict[int, int]:
        """Releases of clients that answered a plan."""
        method = self._program.method
        counts = {cid: self.privacy.mechanisms(method, plan, n) for cid, n in answers.items()}
        return {cid: count for cid, count in sorted(counts.items()) if count}

    def give_up(self, plan: Plan, answers: Answers) -> None:
        """Take answers that no step counts."""
        self.repeated.update(self.answered(plan, answers))

    def after(self, plan: Plan, answers: Answers) -> PrivacySpent:
        """What will have been told once these answers count."""
        now = self.answered(plan, answers)
        total = self.mechanisms + self.repeated + Counter(now)
        by_mean = self._told_by_mean | self._more_by_mean(now)
        worst = self.privacy.epsilon_after(max(total.values(), default=0))
        of_mean = None
        if not unlike_a_mean(self._program):
            of_mean = epsilon(max(by_mean.values(), default=0.0), self.privacy.delta)
        return PrivacySpent(
            self.privacy.name,
            worst,
            of_mean,
            self.privacy.delta,
            now,
            dict(sorted(self.repeated.items())),
        )

    def accept(self, spent: PrivacySpent) -> None:
        """Take a step that counts."""
        self.mechanisms.update(spent.mechanisms)
        self.mechanisms.update(spent.repeated)
        self._told_by_mean |= self._more_by_mean(spent.mechanisms)
        self.repeated.clear()

    def _more_by_mean(self, answered: Mapping[int, int]) -> dict[int, float]:
        """To those who see the mean of m uploads: the noise of all of them is on the sum."""
        return {
            cid: self._told_by_mean.get(cid, 0.0)
            + mechanisms_told(self.privacy.noise, count) / len(answered)
            for cid, count in answered.items()
        }

    def epsilon_with(self, steps: Sequence[Mapping[int, int]]) -> float:
        """After further releases, step by step."""
        total = self.mechanisms + self.repeated
        for step in steps:
            total.update(step)
        return self.privacy.epsilon_after(max(total.values(), default=0))


def unlike_a_mean(program: Program) -> str:
    """Why what clients receive is not made of means over all uploads of a round, each with the same
    weight; empty if it is."""
    if not isinstance(program.privacy, ClientPrivacy):
        return "the noise is on gradients"
    if not isinstance(program.aggregation, Mean):
        return f"{program.aggregation.name} stands in for the mean"
    for part in program.method.parts:
        if part.gathers or part.gathers_model:
            return f"{part.name} reads single uploads"
    return _done_to_uploads(program)


def _done_to_uploads(program: Program) -> str:
    """What is done to each noisy upload by itself and could not be done to their sum."""
    if program.compression != NONE:
        return "compression changes every upload by itself"
    if program.secure is not None:
        return "secure_aggregation rounds and bounds every upload by itself"
    if any(key.endswith("running_var") for key in program.shared(0)):
        return "the variances of BatchNorm are kept above zero in every upload by itself"
    return ""


def check_first_round(experiment: Experiment) -> None:
    """Refuse a run whose budget permits not even one round. Sites know their rows themselves, and
    their runs are asked when they begin."""
    program = experiment.program
    account = PrivacyAccount.of(program)
    if account is None or not account.privacy.budget or isinstance(experiment.data, RemoteData):
        return
    everybody = range(program.clients)
    Budget(experiment, account, account.privacy).ends_with(experiment.plans, everybody)


class Budget:
    """Which training round is the last that the budget permits."""

    def __init__(self, experiment: Experiment, account: PrivacyAccount, privacy: Privacy) -> None:
        self._experiment, self._account, self._privacy = experiment, account, privacy

    def ends_with(self, plans: Sequence[Plan], present: Sequence[int] | None) -> str:
        """Why the first of the plans that are left, a training round, is the last one; empty if
        another may follow. `present` are the clients a round is drawn from, None: any.

        The next round is looked at while this one can still be the last, because the last one
        measures more than others, and what comes after it sends something too.
        """
        training = [plan for plan in plans if plan.kind == "train"]
        closing = [self._of_all(plan) for plan in plans if plan.kind != "train"]
        first = self._account.epsilon_with([self._last(training[0], present), *closing])
        budget = self._privacy.budget
        if first > budget:
            raise BadInput(
                f"privacy: round {training[0].t} would bring epsilon to {first:.4g}, over the"
                f" budget of {budget:g}; raise the budget or the noise"
            )
        if len(training) < 2:
            return ""
        this, following = self._of(training[0], present), self._last(training[1], present)
        second = self._account.epsilon_with([this, following, *closing])
        if second <= budget:
            return ""
        return (
            f"privacy: another round would bring epsilon to {second:.4g}, over the budget of"
            f" {budget:g}"
        )

    def _last(self, plan: Plan, present: Sequence[int] | None) -> dict[int, int]:
        full = self._experiment.protocol.full_last_round
        return self._of_all(plan) if full else self._of(plan, present)

    def _of_all(self, plan: Plan) -> dict[int, int]:
        return self._releases(plan, range(self._experiment.program.clients))

    def _of(self, plan: Plan, present: Sequence[int] | None) -> dict[int, int]:
        if present is None:
            return self._of_all(plan)
        share = self._experiment.config.participation
        return self._releases(plan, self._experiment.program.cohort(plan, share, present))

    def _releases(self, plan: Plan, cohort: Iterable[int]) -> dict[int, int]:
        method, data = self._experiment.program.method, self._experiment.data
        # Only the sites know their rows, and with secure aggregation nobody is told.
        if isinstance(data, RemoteData) or self._experiment.program.secure is not None:
            return {cid: self._privacy.mechanisms(method, plan, None) for cid in cohort}
        clients = data.partition.clients
        return {
            cid: self._privacy.mechanisms(method, plan, len(clients[cid].train)) for cid in cohort
        }
