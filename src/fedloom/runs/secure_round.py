"""A round with secure aggregation: the messages before and after the masked uploads.

::

    keys     once for every client: its public key
    shares   a fresh key for this round, and two secrets divided among all members of the round
    (round)  the method's own message and the masked upload
    unmask   shares of one secret of each member: of the mask of its own where its upload is there,
             of its key for this round where it is not

Any of the members may go at any time, as long as `Pairwise.needed` stay. Where fewer send an
upload, nothing is unmasked and the round can be asked again, with other masks. Where fewer answer
at the end, the run stops: some have revealed shares then, and an answer that comes late would give
the sum of this attempt beside that of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedloom.core.message import Down, Plan, Up
from fedloom.core.program import Program
from fedloom.core.round import Round
from fedloom.core.secure.keys import PUBLIC_BYTES, is_public_key
from fedloom.core.secure.numbers import as_bytes, as_tensor
from fedloom.core.secure.server import Member, masks_left, secrets_from
from fedloom.core.secure.slices import SECURE, Step
from fedloom.core.tree import State, Tree, nbytes
from fedloom.engines import Absent, Engine, Job
from fedloom.errors import NotUnmasked, TooFewAnswers

UNMASK_TRIES = 3
"""How often those who sent an upload are asked for their shares; it is the same question."""

OwnState = Callable[[int], State | None]


class Traffic:
    """Bytes of the messages of a step."""

    def __init__(self) -> None:
        self.up = self.down = 0

    def sent(self, cid: int, message: State) -> None:
        """To a client."""
        self.down += nbytes(message)

    def came(self, cid: int, up: Up) -> None:
        """From a client."""
        self.up += nbytes(up.state)


class SecureRound:
    """One attempt at one round."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        attempt: int,
        server: State,
        engine: Engine,
        own: OwnState,
        traffic: Traffic | None = None,
    ) -> None:
        """`own` gives what a client keeps, as the run counts on it."""
        assert program.secure is not None
        self.setting = program.secure
        self.absent: dict[int, str] = {}
        """Who went before the round's own message, and why."""
        self._engine, self._plan, self._attempt = engine, plan, attempt
        self._traffic = traffic or Traffic()
        self._committed, self._new = own, dict[int, State]()
        known = server.get(SECURE, {}).get("publics")
        if known is None:
            known = torch.zeros(program.clients, PUBLIC_BYTES, dtype=torch.uint8)
        self._publics: Tensor = known.clone()
        self._asked: list[int] = []
        self._members: dict[int, Member] = {}
        self._sealed: dict[int, Tensor] = {}
        """Of every member, what it sealed for those who were asked [asked, 2, bytes]."""
        self._about: Tree = {
            "of": as_tensor(f"{plan.kind} {plan.owner}".encode()),
            "attempt": torch.tensor(attempt),
        }

    def own(self, cid: int) -> State | None:
        """What a client keeps, with its secret."""
        return self._new[cid] if cid in self._new else self._committed(cid)

    # ------------------------------------------------------------------ before the round's message

    def prepare(self, cohort: Sequence[int]) -> list[int]:
        """Keys and shares; returns the members of the round."""
        without_key = [cid for cid in cohort if not self._publics[cid].any()]
        keys = self._ask("keys", without_key, lambda cid: {})
        known = {as_bytes(public) for public in self._publics if public.any()}
        for cid, tree in keys.items():
            public = as_bytes(tree["public"])
            if public in known or not is_public_key(public):
                self.absent[cid] = "its public key is none, or another client's"
                continue
            known.add(public)
            self._publics[cid] = tree["public"]
        self._asked = [cid for cid in cohort if self._publics[cid].any()]
        self._check_enough("have a key", self._asked, len(cohort))
        about = {**self._about, **self._listed(self._asked, self._publics[self._asked])}
        for cid, tree in self._ask("shares", self._asked, lambda cid: about).items():
            self._members[cid] = Member(
                *(as_bytes(tree[key]) for key in ("nonce", "public", "commitment"))
            )
            self._sealed[cid] = tree["sealed"]
        self._members = dict(sorted(self._members.items()))
        self._check_enough("sent shares", self._members, len(cohort))
        return list(self._members)

    def added_to(self, down: Down) -> Down:
        """The round's own message, with what a member needs for its masks."""
        return replace(down, state={**down.state, SECURE: self._of_members})

    @property
    def _of_members(self) -> Tree:
        if "members" not in self._about:  # made once: all clients get the same tensors
            publics = [as_tensor(member.public) for member in self._members.values()]
            self._about |= self._listed(list(self._members), torch.stack(publics))
            nonces = [as_tensor(member.nonce) for member in self._members.values()]
            self._about["nonces"] = torch.stack(nonces)
        return self._about

    @staticmethod
    def _listed(members: Sequence[int], publics: Tensor) -> Tree:
        return {"members": torch.tensor(members), "publics": publics}

    # ------------------------------------------------------------------ after it

    @property
    def least(self) -> int:
        """How many uploads there must be."""
        return self.setting.needed(len(self._asked))

    def unmask(self, r: Round) -> None:
        """Take away what is left of the masks in the sums of a round that is over."""
        answered = [cid for cid in self._members if cid in r.ups]
        about = dict(self._of_members)
        about |= self._listed(list(self._members), self._publics[list(self._members)])
        about |= {
            "answered": torch.tensor([cid in r.ups for cid in self._members], dtype=torch.uint8),
            "asked": torch.tensor(len(self._asked)),
        }

        def message(cid: int) -> Tree:
            place = self._asked.index(cid)
            tokens = [
                self._sealed[member][place, 0 if member in r.ups else 1] for member in self._members
            ]
            return {**about, "sealed": torch.stack(tokens)}

        revealed: dict[int, dict[int, bytes]] = {}
        for _ in range(UNMASK_TRIES):
            silent = [cid for cid in answered if cid not in revealed]
            for cid, tree in self._ask("unmask", silent, message).items():
                shares = map(as_bytes, tree["shares"])
                revealed[cid] = dict(zip(self._members, shares, strict=True))
            if len(revealed) >= self.least:
                break
        if len(revealed) < self.least:
            raise NotUnmasked(
                f"{self._plan}: {len(revealed)} of {len(answered)} clients that sent an upload"
                f" helped to unmask the sum, and it takes {self.least}; the run stops here, see to"
                " them, then go on with fedloom resume"
            )
        # As many as it takes, and not all: which ones makes no difference to the secrets.
        enough = {cid: revealed[cid] for cid in sorted(revealed)[: self.least]}
        secrets = secrets_from(enough, list(self._members))
        assert r.masked is not None
        r.unmask(masks_left(self._members, answered, secrets, r.masked.count))
        r.notes[SECURE]["members"] = list(self._members)
        if self._attempt:
            r.notes[SECURE]["attempt"] = self._attempt

    def kept_by_server(self, server: State, answered: Mapping[int, Up]) -> State:
        """The server's state with the public keys of clients that are known to have theirs; who
        went is asked for its key again, since it may have lost it."""
        publics = self._publics.clone()
        gone = [cid for cid in {*self._asked, *self.absent} if cid not in answered]
        publics[gone] = 0
        return {**server, SECURE: {"publics": publics}}

    # ------------------------------------------------------------------ messages

    def _ask(
        self, step: Step, clients: Sequence[int], tree: Callable[[int], Tree]
    ) -> dict[int, Tree]:
        """The answers of those who gave one."""
        if not clients:
            return {}
        plan = replace(self._plan, kind="special", owner=f"{SECURE}.{step}")

        def job(cid: int) -> Job:
            state = {SECURE: message} if (message := tree(cid)) else {}
            self._traffic.sent(cid, state)
            return Job(cid, Down(plan, state), self.own(cid))

        answers: dict[int, Tree] = {}
        for cid, up, own in self._engine.clients(clients, job, None):
            if isinstance(up, Absent):
                if step != "unmask":
                    self.absent[cid] = up.why
                continue
            self._traffic.came(cid, up)
            self._new[cid] = own
            answers[cid] = up.state[SECURE]
        return answers

    def _check_enough(
        self, what: str, clients: Sequence[int] | Mapping[int, Member], of: int
    ) -> None:
        least = self.setting.needed(of)
        if len(clients) < least:
            reasons = "; ".join(f"client {cid}: {why}" for cid, why in sorted(self.absent.items()))
            raise TooFewAnswers(
                f"{self._plan}: {len(clients)} of {of} clients {what}, fewer than the {least} that"
                f" secure aggregation needs ({reasons}); nothing of this round counts, see to them"
            )
