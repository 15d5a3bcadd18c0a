"""The gate's decisions: what may run at this site, and what may leave it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedloom.audit import AuditLog
from fedloom.deploy.consent.approvals import Approval, Approvals, data_version
from fedloom.deploy.consent.proposal import (
    MOST_WAITING,
    WAITS,
    App,
    Proposal,
    Proposals,
    code_refusals,
    policy_digest,
    propose,
)
from fedloom.deploy.gate.bindings import Bindings
from fedloom.deploy.gate.counters import Counters
from fedloom.deploy.gate.form import ADMITTED, SCORINGS, Assessment, Form, Objection
from fedloom.deploy.gate.judged import MOST_JUDGED, Judged
from fedloom.deploy.gate.orders import OrderHead, order_digest, read_order_head
from fedloom.deploy.gate.replies import Forbidden, checked_answer, checked_error, checked_hello
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.state_binding import OtherSettings
from fedloom.engines.content import content_bytes
from fedloom.errors import FedloomError
from fedloom.policy import Policy, Refusal, byte_refusals, experiment_refusals, refused_now

log = logging.getLogger("fedloom")

Assess = Callable[[Path, str, bool], Assessment]
"""Site's file, digest of a stored proposal, may the app's code run -> what is to be said of it."""
KNOWN_PROPOSALS = 100
"""Proposals whose assessment is held in memory."""
KNOWN_REASONS = 10_000
"""Runs with why they are refused that are held in memory."""
MOST_TOLD = 1000
"""Characters of what the server is told."""
FAILED = "the site's gate could not check it; see the site's log"


class Refused(Exception):
    """Not at this site, or not yet."""

    def __init__(self, event: str, rule: str, sentence: str, told: str = "") -> None:
        """`event` is for the audit log; `told` is what the server learns, by default the same."""
        super().__init__(sentence)
        self.event, self.rule, self.told = event, rule, told or sentence


@dataclass(frozen=True)
class Permitted:
    """A run that may ask this site, and what its answers may hold."""

    proposal: Proposal
    settings: Settings
    configuration: Mapping[str, Any]
    assessment: Assessment
    form: Form
    data: str
    """Version of the site's data that was judged."""
    approved: int | None
    """How often the operator approved it, each time for all of its rounds; None: the policy lets it
    pass, whose own limits count."""

    def most_answers(self, order: OrderHead) -> int | None:
        """How many orders of this kind may be answered; None: as many as the policy says."""
        times = self.form.most_answers(order.task, order.step)
        return None if times is None or self.approved is None else times * self.approved


@dataclass(frozen=True)
class LetIn:
    """A message that an app of this site may answer."""

    run: int
    permitted: Permitted
    order: OrderHead | None
    """None: it asks who the site is."""
    digest: str = ""
    """Of the order with its tensors and the site's data."""


class Gate:
    """Decides for one site, by its file, its approvals, and what happened before."""

    def __init__(self, file: Path, assess: Assess) -> None:
        self.file, self._assess = file.absolute(), assess
        self._assessments: dict[tuple[str, bool, str], Assessment] = {}
        self._recorded: set[tuple[int, str]] = set()
        """Runs, each with why it waits or is refused, that are in the audit log already."""
        self._admitted: set[str] = set()
        """Proposals whose settings the audit log has because the policy let them pass."""

    @property
    def site(self) -> SiteConfig:
        """Read anew for every decision, so that a stricter rule holds at once."""
        return SiteConfig.read(self.file)

    @property
    def audit(self) -> AuditLog:
        """The site's own record."""
        return AuditLog(self.site.state / "audit.jsonl")

    # -------------------------------------------------------------- what comes in

    def permit(self, run: int, app: App, configuration: Mapping[str, Any]) -> Permitted:
        """The run, if the policy permits it and it was approved; raises `Refused`."""
        site = self.site
        try:
            proposal = propose(site, app, configuration)
        except FedloomError as e:
            sentence = f"no run for this site: {str(e)[:300]}"
            raise self.refuse_message(run, "proposal", sentence, app=app.sha256) from None
        try:
            permitted = self._permit(site, run, proposal, app, configuration)
        except Refused as e:
            if self._is_new(run, f"{proposal.digest} {e.rule}"):
                settings = proposal.settings
                self._record(
                    e.event, run, proposal, rule=e.rule, sentence=str(e), settings=settings
                )
                log.warning("run %d (%s): %s", run, proposal.digest[:12], e)
            raise
        if permitted.approved is None:
            self._record_admission(run, permitted)
        return permitted

    def _record_admission(self, run: int, permitted: Permitted) -> None:
        """A run that the policy lets pass, with its settings and what may leave, once: whom nobody
        asks can look it up here."""
        digest = permitted.proposal.digest
        if digest not in self._admitted:
            self._admitted |= {x["proposal"] for x in self.audit.lines() if x["event"] == ADMITTED}
        if digest not in self._admitted:
            self._admitted.add(digest)
            settings, form = permitted.proposal.settings, permitted.form.model_dump(mode="json")
            self._record(ADMITTED, run, permitted.proposal, settings=settings, form=form)

    def _is_new(self, run: int, why: str) -> bool:
        """Is this not recorded yet? A server asks again and again."""
        is_new = (run, why) not in self._recorded
        if len(self._recorded) >= KNOWN_REASONS:
            self._recorded.clear()
        self._recorded.add((run, why))
        return is_new

    def _permit(
        self,
        site: SiteConfig,
        run: int,
        proposal: Proposal,
        app: App,
        configuration: Mapping[str, Any],
    ) -> Permitted:
        policy, digest = site.policy, proposal.digest
        settings = Settings.read(configuration)
        if pinned := code_refusals(policy, app, configuration):
            raise _refused_by(objections(pinned))
        try:
            Bindings(site.state).check(settings)
        except OtherSettings as e:
            raise Refused("refused", "state", str(e)) from None
        approval = Approvals(site.state).holding().get(digest)
        by_policy = _passes_by_policy(policy, proposal)
        stored, version = Proposals(site.state), data_version(site)
        if approval is None and not by_policy:
            self._check_room(site, digest)
        stored.add(proposal, app, configuration, str(run))
        try:
            agreed = approval is not None or by_policy
            assessment = self._assessed(digest, approval, agreed, version)
        finally:
            if approval is None and by_policy:
                stored.remove(digest)  # nobody is asked, so it does not wait
        if assessment.refusals:
            if approval is None:
                stored.remove(digest)
            raise _refused_by(assessment.refusals)
        if approval is None and not by_policy:
            raise Refused(
                "waiting",
                "approval",
                f"{WAITS}: fedloom deploy approve {self.file}",
                WAITS,
            )
        if assessment.form is None or assessment.hello is None:
            raise Refused("refused", "form", "what may leave is not known", FAILED)
        if approval is not None and approval.assessment.form != assessment.form:
            raise Refused(
                "refused",
                "form",
                "what would leave is not what was approved, because the site's data changed;"
                f" revoke {digest[:12]} and approve it anew",
                WAITS,
            )
        times = None if approval is None else approval.times
        return Permitted(
            proposal, settings, configuration, assessment, assessment.form, version, times
        )

    def refuse_message(self, run: int, rule: str, sentence: str, **fields: str) -> Refused:
        """A message of which nothing is known but the run; the same reason is recorded once."""
        if self._is_new(run, sentence):
            self.audit.append("refused", run=str(run), **fields, rule=rule, sentence=sentence)
            log.warning("run %d: %s", run, sentence)
        return Refused("refused", rule, sentence)

    def let_in(self, run: int, permitted: Permitted, records: RecordDict | None) -> LetIn:
        """A message of a permitted run; `records` is None where it asks who the site is."""
        site, proposal = self.site, permitted.proposal
        for refusal in refused_now(site.policy, datetime.now()):
            raise self._refused(run, proposal, refusal.rule, refusal.sentence)
        if records is None:
            self._record("received", run, proposal, task="hello")
            return LetIn(run, permitted, None)
        try:
            order = read_order_head(records)
        except (FedloomError, ValueError) as e:
            raise self._refused(run, proposal, "order", f"no order of fedloom: {e}") from None
        if fault := _order_fault(order, permitted, site):
            raise self._refused(run, proposal, "order", fault)
        let_in = LetIn(run, permitted, order, order_digest(records, permitted.data))
        counters = Counters(site.state)
        if sentence := _past_most_rounds(let_in, counters, site.policy.most_rounds):
            raise self._refused(run, proposal, "most_rounds", sentence)
        others = counters.experiments() - {proposal.experiment}
        for refusal in experiment_refusals(site.policy, len(others)):
            raise self._refused(run, proposal, refusal.rule, refusal.sentence)
        if over := _rounds_over(let_in, counters):
            raise self._refused(run, proposal, "rounds", over)
        try:
            Bindings(site.state).bind(permitted.settings)
        except OtherSettings as e:
            raise self._refused(run, proposal, "state", str(e)) from None
        counters.add_order(proposal.experiment, order.counted_as)
        self._record("received", run, proposal, task=order.task, round=order.plan.t)
        return let_in

    # -------------------------------------------------------------- what goes out

    def let_out(self, let_in: LetIn, records: RecordDict) -> RecordDict:
        """The answer as it may leave; raises `Refused`."""
        order, permitted = let_in.order, let_in.permitted
        assessment = permitted.assessment
        site = self.site
        if not _is_agreed_to(site, permitted.proposal):
            why = "the approval was taken back, or the policy changed, while it was computed"
            raise self._refused_answer(let_in, "approval", why)
        if data_version(site) != permitted.data:
            why = "the site's data changed while it was computed, and was not judged"
            raise self._refused_answer(let_in, "data", why)
        try:
            if order is not None:
                return checked_answer(records, order, permitted.form, assessment.rows)
            if "error" in records:
                return checked_error(records, None)
            assert assessment.hello is not None
            return checked_hello(records, assessment.hello)
        except Forbidden as e:
            raise self._refused_answer(let_in, "form", str(e)) from None

    def count_out(self, let_in: LetIn, bundle: RecordDict, failed: bool) -> None:
        """An answer is about to be sent, or why there is none; raises `Refused` where that has too
        many bytes."""
        site, proposal = self.site, let_in.permitted.proposal
        policy, counters, order = site.policy, Counters(site.state), let_in.order
        place, sent, sha256 = _place(order), content_bytes(bundle), bundle.object_id
        if order is not None and not failed:
            place["step"] = order.step  # for the dossier, which counts what noise was on
        if order is not None:
            in_all = counters.of(proposal.experiment).bytes + sent
            for refusal in byte_refusals(policy, sent, in_all):
                raise self._refused_answer(let_in, refusal.rule, refusal.sentence)
            if over := _rounds_over(let_in, counters):
                raise self._refused_answer(let_in, "rounds", over)
        # The log comes first: it never has less than what was counted, unless lines were cut off.
        self._record("sent", let_in.run, proposal, **place, bytes=sent, sha256=sha256)
        if order is not None:
            name, answered = _answers_of(order), None if failed else let_in.digest
            counters.add_answer(proposal.experiment, sent, name, answered)

    def refuse_answer(self, let_in: LetIn | None, why: str) -> None:
        """Record an answer that is not sent because of something else than its content."""
        if let_in is None:
            self.audit.append("refused", rule="answer", sentence=why)
        else:
            self._refused_answer(let_in, "answer", why)

    def record_failure(self, run: int, error: Exception) -> None:
        """The gate itself failed, which refuses what it looked at."""
        with suppress(Exception):  # nothing may keep the refusal from being sent
            self.audit.append("refused", run=str(run), rule="gate", sentence=repr(error)[:300])

    def most_bytes(self, let_in: LetIn) -> int:
        """Of an answer, before it is looked into."""
        return min(let_in.permitted.form.most_bytes, self.site.policy.most_bytes_per_round)

    # -------------------------------------------------------------- inside

    def _check_room(self, site: SiteConfig, digest: str) -> None:
        """Somebody who proposes again and again may fill neither the disk nor, by what is refused
        and what waits, a list of facts about the site's rows."""
        if not Judged(site.state).add(digest):
            sentence = (
                f"{MOST_JUDGED} proposals were judged since somebody here looked; `fedloom deploy"
                f" approve {self.file}` shows what waits, and lets others be judged"
            )
            raise Refused("refused", "waiting", sentence, WAITS)
        holding = Approvals(site.state).holding()
        waiting = [d for d in Proposals(site.state).digests() if d not in holding]
        if len(waiting) >= MOST_WAITING:
            sentence = f"{len(waiting)} proposals wait for approval already; decide on those first"
            raise Refused("refused", "waiting", sentence, WAITS)

    def _assessed(
        self, digest: str, approval: Approval | None, with_app: bool, version: str
    ) -> Assessment:
        """As the operator saw it, while the data is the same; otherwise judged anew."""
        if approval is not None and approval.data == version:
            return approval.assessment
        key = (digest, with_app, version)
        if key not in self._assessments:
            while len(self._assessments) >= KNOWN_PROPOSALS:
                self._assessments.pop(next(iter(self._assessments)))
            self._assessments[key] = self._assess(self.file, digest, with_app)
        return self._assessments[key]

    def _refused(self, run: int, proposal: Proposal, rule: str, sentence: str) -> Refused:
        self._record("refused", run, proposal, rule=rule, sentence=sentence)
        log.warning("run %d (%s): %s", run, proposal.digest[:12], sentence)
        return Refused("refused", rule, sentence)

    def _refused_answer(self, let_in: LetIn, rule: str, sentence: str) -> Refused:
        proposal, place = let_in.permitted.proposal, _place(let_in.order)
        self._record("refused", let_in.run, proposal, **place, rule=rule, sentence=sentence)
        log.warning("an answer of run %d is not sent: %s", let_in.run, sentence)
        told = f"the site's gate does not let the answer out ({rule})"
        return Refused("refused", rule, sentence, told)

    def _record(self, event: str, run: int, proposal: Proposal, **fields: Any) -> None:
        self.audit.append(
            event,
            run=str(run),
            experiment=proposal.experiment,
            method=proposal.settings["method"],
            proposal=proposal.digest,
            app=proposal.app,
            **fields,
        )


def _answers_of(order: OrderHead) -> str:
    """The counter of answers to such orders."""
    return f"{order.task} {order.step}"


def _past_most_rounds(let_in: LetIn, counters: Counters, most: int) -> str:
    """Why the policy's rounds of an experiment are over; empty: they are not. A server that was
    killed asks again for what was answered, which tells nothing new; that has an end, too."""
    order = let_in.order
    assert order is not None
    count = counters.of(let_in.permitted.proposal.experiment)
    answered = count.answered.get(_answers_of(order), ())
    served = count.orders.get(order.counted_as, 0)
    permitted = most * (SCORINGS if order.task == "evaluate" else 1)
    if len(answered) >= permitted and let_in.digest not in answered:
        return f"{len(answered)} different orders were answered, most_rounds = {most}"
    if served >= 2 * permitted:
        return f"{served} orders were served, repeated ones too, most_rounds = {most}"
    return ""


def _rounds_over(let_in: LetIn, counters: Counters) -> str:
    """Why an order is one more than was approved; empty: it is not. What counts is how many
    different orders were answered, whatever rounds the server says they are."""
    order, permitted = let_in.order, let_in.permitted
    if order is None or (most := permitted.most_answers(order)) is None:
        return ""
    count = counters.of(permitted.proposal.experiment)
    answered = count.answered.get(_answers_of(order), ())
    if len(answered) < most or let_in.digest in answered:
        return ""
    return (
        f"{permitted.settings.run.rounds} rounds were approved, and all {most} orders of this kind"
        " are answered; the site's operator may permit as many again:"
        f" fedloom deploy approve SITE.TOML --yes {permitted.proposal.digest[:12]}"
    )


def _passes_by_policy(policy: Policy, proposal: Proposal) -> bool:
    """Does the policy let this code in without asking the operator? Modules that are installed here
    are no part of the app, and count only if it lists them too."""
    known = proposal.app in policy.apps and proposal.modules.keys() <= policy.modules.keys()
    return policy.approval == "policy" and known


def _is_agreed_to(site: SiteConfig, proposal: Proposal) -> bool:
    """Is what was agreed to when a message was let in agreed to still?"""
    if policy_digest(site.policy) != proposal.policy:
        return False
    approved = proposal.digest in Approvals(site.state).holding()
    return approved or _passes_by_policy(site.policy, proposal)


def objections(refusals: Iterable[Refusal]) -> tuple[Objection, ...]:
    """What the policy says, as it is handed between processes."""
    return tuple(Objection(rule=r.rule, sentence=r.sentence, in_full=r.in_full()) for r in refusals)


def _refused_by(refusals: Sequence[Objection]) -> Refused:
    return Refused(
        "refused",
        ", ".join(objection.rule for objection in refusals),
        " | ".join(objection.in_full for objection in refusals),
        "the site's policy refuses it: " + "; ".join(o.sentence for o in refusals)[:MOST_TOLD],
    )


def _place(order: OrderHead | None) -> dict[str, Any]:
    return {"task": "hello"} if order is None else {"task": order.task, "round": order.plan.t}


def _order_fault(order: OrderHead, permitted: Permitted, site: SiteConfig) -> str:
    """Where an order is not one of the run that was approved; empty: nowhere."""
    settings, form, plan, ask = permitted.settings, permitted.form, order.plan, order.ask
    run, sites = settings.run, settings.sites
    faults = {
        "its seed or number of clients is not that of the settings": (
            plan.seed != run.seed or plan.clients != run.clients
        ),
        f"round {plan.t} is none of the {run.rounds} that were agreed on": (
            plan.t > run.rounds + (plan.kind != "train")  # what comes after training is one later
        ),
        f"the run has no step {order.step}": order.step not in form.steps,
        f"client {order.client} is not this site": (
            order.client >= plan.clients
            or (site.name in sites and sites.index(site.name) != order.client)
        ),
        "it asks for scores on rows that the settings do not score": (
            ask is not None and not set(ask.splits) <= set(form.splits)
        ),
        "it asks for scores, but not which": order.task == "evaluate" and ask is None,
    }
    return next((fault for fault, is_so in faults.items() if is_so), "")
