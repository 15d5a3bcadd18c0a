"""Secure aggregation worked by hand: numbers, shares, masks, the sum and its bounds."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from torch import Tensor

from fedloom import BadInput, run
from fedloom.core.message import Up
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.core.secure import shamir
from fedloom.core.secure.keys import PUBLIC_BYTES, KeyPair, derived, mask, opened, sealed
from fedloom.core.secure.numbers import as_tensor, packed, rounded, signed, unpacked
from fedloom.core.secure.secrets import PairMasks, RoundSecrets
from fedloom.core.secure.server import Member, masks_left, secrets_from
from fedloom.core.secure.setting import Pairwise, parse_secure_aggregation
from fedloom.core.secure.slices import SECURE
from fedloom.core.secure.upload import Encoded, MaskedSum, clear_part
from fedloom.core.tree import State
from fedloom.engines import Absent, JobOf
from fedloom.engines.inline import Inline
from fedloom.errors import NotUnmasked, TooFewAnswers
from fedloom.files import write_json
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunFolder
from fedloom.runs.runner import Runner
from fedloom.runs.unmasked_sums import UnmaskedSums
from fedloom.testing.federations import digits

# ------------------------------------------------------------------ numbers


def test_numbers_become_the_nearest_multiples() -> None:
    """clip 1, 3 bits: the step is 1/4 and a number is -4 ... 4 of it. 0.3 / 0.25 = 1.2 -> 1,
    -0.9 / 0.25 = -3.6 -> -4; 1.2 is clipped to 4. An integer stays, up to the same bound."""
    setting = Pairwise(clip=1.0, bits=3, totals=1.0)
    assert setting.step == 0.25
    values = rounded(torch.tensor([0.3, -0.9, 1.2]), setting.step, setting.levels(False), "w")
    assert values.numbers.tolist() == [1, -4, 4]
    assert values.clipped == 1
    counts = rounded(torch.tensor([3, -7]), setting.step, setting.levels(False), "n")
    assert counts.numbers.tolist() == [3, -4]
    assert counts.clipped == 1


@pytest.mark.parametrize("modulus", [32, 40, 48, 56, 64])
def test_bytes_keep_numbers_modulo_their_size(modulus: int) -> None:
    """-5 is 2^m - 5; 2^(m-1) - 1 is the largest above 0."""
    most = 2 ** (modulus - 1) - 1
    numbers = np.array([-5, 7, most, -most], np.int64).view(np.uint64)
    sent = packed(numbers, modulus)
    assert sent.shape == (4, modulus // 8)
    assert signed(unpacked(sent), modulus).tolist() == [-5, 7, most, -most]


def encoded(setting: Pairwise, values: Sequence[float], weight: int) -> Encoded:
    upload = Encoded(setting, {})
    upload.take("model", {"w": torch.tensor(values)}, weight, False, "here")
    return upload


def test_the_mean_is_that_of_the_rounded_numbers() -> None:
    """Step 1/4. 0.3 -> 1 step and 0.9 -> 4 steps (3.6 rounds up), with weights 1 and 3:
    (1 + 3 * 4) / 4 = 3.25 steps = 0.8125. The plain mean is (0.3 + 2.7) / 4 = 0.75, and
    0.0625 is within half a step, 0.125. The sum is 13 steps."""
    setting = Pairwise(clip=1.0, bits=3, totals=1.0)
    together = MaskedSum(setting)
    for cid, (value, weight) in enumerate([(0.3, 1), (0.9, 3)]):
        sent = encoded(setting, [value], weight).masked(np.zeros(3, np.uint64))
        clear = {name: {"@types": tree["@types"]} for name, tree in sent.items()}
        together.add(cid, sent, clear)
    total = together.without(np.zeros(3, np.uint64))["model"]
    assert total.mean()["w"].tolist() == [0.8125]
    assert total.sum()["w"].tolist() == [3.25]
    assert (total.weight, total.clipped) == (4, 0)
    assert total.mean()["w"].dtype == torch.float32


def test_the_bound_holds_for_random_numbers_and_weights() -> None:
    """|mean of rounded - mean| <= sum w_i |rounded_i - x_i| / sum w_i <= step / 2."""
    gen, setting = torch.Generator().manual_seed(0), Pairwise()
    values = torch.randn(5, 1000, generator=gen, dtype=torch.float64)
    weights = [1, 20, 300, 4000, 7]
    together = MaskedSum(setting)
    for cid, weight in enumerate(weights):
        upload = Encoded(setting, {})
        upload.take("model", {"w": values[cid]}, weight, False, "here")
        sent = upload.masked(np.zeros(upload.count, np.uint64))
        together.add(cid, sent, {"model": {"@types": sent["model"]["@types"]}})
    mean = together.without(np.zeros(together.count, np.uint64))["model"].mean()["w"]
    plain = (values * torch.tensor(weights)[:, None]).sum(0) / sum(weights)
    error = float((mean - plain).abs().max())
    assert setting.step / 20 < error <= setting.step / 2


# ------------------------------------------------------------------ shares


def test_shares_by_hand() -> None:
    """A line through (1, 12) and (2, 17) is 7 at 0: the factors of points 1 and 2 are 2 and -1."""
    held = {1: (12).to_bytes(33), 2: (17).to_bytes(33)}
    assert shamir.secret_of(held, shamir.factors(held)) == (7).to_bytes(32)


def test_as_many_shares_as_it_takes_give_the_secret_and_fewer_do_not() -> None:
    secret = derived(b"test", "a secret")
    points = [1, 2, 5, 9]
    held = dict(zip(points, shamir.shares(secret, 3, points, b"seed"), strict=True))
    for chosen in combinations(points, 3):
        some = {x: held[x] for x in chosen}
        assert shamir.secret_of(some, shamir.factors(some)) == secret
    for chosen in combinations(points, 2):
        some = {x: held[x] for x in chosen}
        assert shamir.secret_of(some, shamir.factors(some)) != secret


# ------------------------------------------------------------------ keys and masks


def test_two_clients_agree_and_a_third_does_not() -> None:
    one, other, third = (KeyPair(derived(b"test", i)) for i in range(3))
    key = one.agreed(other.public)
    assert key == other.agreed(one.public) != third.agreed(one.public)
    token = sealed(key, b"for two")
    assert opened(other.agreed(one.public), token) == b"for two"
    with pytest.raises(BadInput, match="was not sealed for this one"):
        opened(third.agreed(one.public), token)
    with pytest.raises(BadInput, match="is no public key"):
        one.agreed(bytes(33))


def test_why_masks_are_not_of_flowers_generator() -> None:
    """Flower's folds 32 bytes into 4 by exclusive or: two secrets that differ in two words by the
    same bits have the same masks, so that 2^32 trials find any. Ours tell them apart."""
    one, other = bytes(32), b"\1\0\0\0\1" + bytes(27)
    assert (
        pseudo_rand_gen(one, 2**24, [(5,)])[0] == pseudo_rand_gen(other, 2**24, [(5,)])[0]
    ).all()
    assert (mask(one, 5) != mask(other, 5)).all()


SETTING = Pairwise(clip=4.0)


def masked_uploads(
    values: Sequence[Sequence[float]], nonce: bytes = b"n"
) -> tuple[dict[int, State], dict[int, Member], dict[int, RoundSecrets]]:
    """Uploads of clients 0, 1, ... with all their masks, as in a round."""
    from fedloom.core.secure.secrets import Attempt

    attempt = Attempt(0, 1, "train model", 0)
    secrets = {
        cid: RoundSecrets.of(derived(b"secret", cid), nonce, attempt) for cid in range(len(values))
    }
    nonces = dict.fromkeys(secrets, nonce)
    pairs = {cid: PairMasks(known.pairs, cid, nonces) for cid, known in secrets.items()}
    members = {cid: Member(nonce, pairs[cid].public, secrets[cid].commitment) for cid in secrets}
    uploads = {}
    for cid, numbers in enumerate(values):
        upload = encoded(SETTING, numbers, 1)
        total = secrets[cid].own_mask(upload.count)
        for other in members.keys() - {cid}:
            total = total + pairs[cid].with_(other, pairs[other].public, upload.count)
        uploads[cid] = upload.masked(total)
    return uploads, members, secrets


def summed(uploads: dict[int, State]) -> MaskedSum:
    together = MaskedSum(SETTING)
    for cid, sent in uploads.items():
        together.add(cid, sent, {"model": {"@types": sent["model"]["@types"]}})
    return together


def test_masks_leave_the_sum_alone() -> None:
    """1 + 2 + 0.5 = 3.5 and -1 + 0 + 3 = 2, and every number is a multiple of the step."""
    uploads, members, secrets = masked_uploads([[1.0, -1.0], [2.0, 0.0], [0.5, 3.0]])
    together = summed(uploads)
    known = {cid: s.own for cid, s in secrets.items()}
    left = masks_left(members, [0, 1, 2], known, together.count)
    total = together.without(left)["model"]
    assert total.sum()["w"].tolist() == [3.5, 2.0]
    assert total.weight == 3
    # Without the clients' own masks it is noise: the common ones cancel, these do not.
    noise = together.without(np.zeros(together.count, np.uint64))["model"]
    assert (noise.sum()["w"] - total.sum()["w"]).abs().min() > 10


def test_who_went_is_taken_out_of_the_sum() -> None:
    """Without client 1, 1 + 0.5 = 1.5 and -1 + 3 = 2. It takes the key of the one who went."""
    uploads, members, secrets = masked_uploads([[1.0, -1.0], [2.0, 0.0], [0.5, 3.0]])
    del uploads[1]
    together = summed(uploads)
    known = {0: secrets[0].own, 1: secrets[1].pairs, 2: secrets[2].own}
    total = together.without(masks_left(members, [0, 2], known, together.count))["model"]
    assert total.sum()["w"].tolist() == [1.5, 2.0]
    assert total.weight == 2
    # Its own mask would not do, and is noticed.
    with pytest.raises(BadInput, match="key of client 1 are not those that it made"):
        masks_left(members, [0, 2], {**known, 1: secrets[1].own}, together.count)


def test_shares_give_the_secrets_that_unmask() -> None:
    secrets = {cid: derived(b"own", cid) for cid in range(4)}
    points = [1, 2, 3, 4]
    held = {cid: shamir.shares(secret, 3, points, b"s%d" % cid) for cid, secret in secrets.items()}
    revealed = {holder: {cid: held[cid][holder] for cid in secrets} for holder in (0, 2, 3)}
    assert secrets_from(revealed, list(secrets)) == secrets


def bits_of(upload: State) -> np.ndarray:
    return np.unpackbits(upload["model"]["w"].numpy().reshape(-1))


def test_a_masked_upload_is_uniform_whatever_is_in_it() -> None:
    """3000 numbers of 48 bits. Of n fair bits the share of ones has a standard deviation of
    1 / (2 sqrt(n)); bound: 5 of them. The same of bits that differ between the uploads of zeros and
    of fours, and between those of zeros in two attempts: as unlike as two random ones."""
    zeros, fours = [0.0] * 3000, [4.0] * 3000
    of_zeros = masked_uploads([zeros] * 3)[0][0]
    of_fours = masked_uploads([fours] * 3, nonce=b"m")[0][0]
    again = masked_uploads([zeros] * 3, nonce=b"o")[0][0]
    plain = encoded(SETTING, zeros, 1).masked(np.zeros(3002, np.uint64))
    most = 5 / (2 * (3000 * 48) ** 0.5)
    for bits in (
        bits_of(of_zeros),
        bits_of(of_fours),
        bits_of(of_zeros) ^ bits_of(of_fours),
        bits_of(of_zeros) ^ bits_of(again),
        bits_of(of_zeros) ^ bits_of(plain),
    ):
        assert abs(bits.mean() - 0.5) < most
    # Bytes by their values: chi-square with 255 degrees of freedom is below 400 but once in 10^8.
    counts = np.bincount(of_zeros["model"]["w"].numpy().reshape(-1), minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 400


def test_the_server_cannot_tell_inputs_of_the_same_sum_apart() -> None:
    """(1, 2, 3) and (3, 2, 1): for every upload of client 0 there are masks that explain both, and
    what the server unmasks is the same."""
    sums = []
    for values in ([[1.0], [2.0], [3.0]], [[3.0], [2.0], [1.0]]):
        uploads, members, secrets = masked_uploads(values)
        together = summed(uploads)
        known = {cid: s.own for cid, s in secrets.items()}
        left = masks_left(members, [0, 1, 2], known, together.count)
        sums.append(together.without(left)["model"].sum()["w"].tolist())
        for cid, sent in uploads.items():
            alone = summed({cid: sent}).without(secrets[cid].own_mask(together.count))["model"]
            # Even without its own mask, a single upload is nowhere near what it hides.
            assert abs(alone.sum()["w"].item()) > 100
    assert sums == [[6.0], [6.0]]


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("pairwise(clip=0)", "clip is a number of 1e-06 or more, not 0"),
        ("pairwise(clip=1e-300)", "clip is a number of 1e-06 or more, not 1e-300"),
        ("pairwise(clip=1e999)", "clip is a number of 1e-06 or more, not inf"),
        ("pairwise(bits=31)", "bits is from 2 to 30"),
        ("pairwise(modulus=33)", "modulus is one of"),
        ("pairwise(threshold=0.5)", "threshold is above 0.5"),
        ("pairwise(totals=1)", "totals is clip or more"),
    ],
)
def test_settings_without_sense_are_refused(text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        parse_secure_aggregation(text)


def test_a_wider_range_keeps_the_step() -> None:
    usual = Pairwise()
    assert usual.wider(True, False) == Pairwise(clip=16.0, bits=23)
    assert usual.wider(True, False).step == usual.step
    assert usual.wider(False, True) == Pairwise(totals=2e6)
    assert Pairwise(bits=30).wider(True, True) == Pairwise(clip=16.0, bits=30, totals=2e6)


def test_an_expression_reads_back_and_true_is_the_usual_kind() -> None:
    text = "pairwise(clip=4.0, modulus=40)"
    assert str(parse_secure_aggregation(text)) == text
    for value, meant in ((True, "pairwise"), (False, None), (text, text)):
        assert RunConfig.checked({"secure_aggregation": value}).secure_aggregation == meant


def test_sums_that_could_overflow_are_refused() -> None:
    """2^31 - 1 = 2147483647 room, 2^21 = 2097152 a number: 1023 numbers fit. Of 10 clients each may
    weigh 102; with 1024 clients not even 1."""
    setting = Pairwise(modulus=32)
    assert setting.most_weight(10, totals=False) == 102
    assert setting.check_weight(102, 10, False, "here") == 102
    with pytest.raises(
        BadInput, match=r"weight of 103 is more than the 102 .* 32 bits; raise modul"
    ):
        setting.check_weight(103, 10, False, "here")
    with pytest.raises(BadInput, match="weight of 1 is more than the 0"):
        setting.check_cohort(1024)
    with pytest.raises(BadInput, match="no whole number"):
        setting.check_weight(0.5, 10, False, "here")


# ------------------------------------------------------------------ whole rounds

DATA = digits(*(((0, 1, 2, 3), 12 + i) for i in range(5)))


def experiment(**settings: object) -> Experiment:
    usual = {"method": "fedavg", "model": "mlp(hidden=[8])", "rounds": 2, "lr": 0.05}
    config = RunConfig.checked({**usual, "secure_aggregation": "pairwise", **settings})
    return Experiment.build(config, data=DATA)


class Leaving(Inline):
    """Clients that are gone at some step: (round, step or "round") -> who."""

    def __init__(self, gone: dict[tuple[int, str], set[int]], times: int = 100) -> None:
        super().__init__()
        self.gone, self.times = gone, times
        self.seen: list[tuple[int, str, dict[int, Up]]] = []

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: object
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        answers: dict[int, Up] = {}
        step, t = "", 0
        for cid in ids:
            asked = job(cid)
            t, owner = asked.down.plan.t, asked.down.plan.owner
            step = owner.removeprefix(f"{SECURE}.") if owner.startswith(SECURE) else "round"
            if cid in self.gone.get((t, step), set()) and self.times > 0:
                yield cid, Absent("it left"), {}
                continue
            for _, up, own in super().clients([cid], lambda _, a=asked: a, ask):  # type: ignore[misc, arg-type]
                answers[cid] = up
                yield cid, up, own
        self.times -= (t, step) in self.gone
        self.seen.append((t, step, answers))


def played(engine: Inline, **settings: object) -> Runner:
    runner = Runner(experiment(**settings), engine)
    runner.run()
    return runner


def mean_without(absent: dict[int, set[int]]) -> State:
    """The plain run in which these clients do not answer."""
    gone = {(t, "round"): who for t, who in absent.items()}
    return played(Leaving(gone), secure_aggregation=False).server


def close(one: State, other: State, steps: float) -> bool:
    most = steps * Pairwise().step
    return all(
        float((one["model"][k] - other["model"][k]).abs().max()) < most for k in one["model"]
    )


@pytest.mark.parametrize("step", ["keys", "shares", "round"])
def test_a_client_that_leaves_before_its_upload(step: str) -> None:
    """The mean is that of the four others, and in the next round it is there again."""
    runner = played(Leaving({(1, step): {2}}))
    assert runner.records[0].absent == {2: "it left"}
    assert not runner.records[1].absent
    assert close(runner.server, mean_without({1: {2}}), steps=4)


def test_a_client_that_leaves_after_its_upload() -> None:
    """Its upload counts: the others have shares of its mask."""
    runner = played(Leaving({(1, "unmask"): {2}}))
    assert not runner.records[0].absent
    assert close(runner.server, mean_without({}), steps=4)


def test_one_leaves_before_and_another_after_its_upload() -> None:
    runner = played(Leaving({(1, "round"): {2}, (1, "unmask"): {4}}))
    assert close(runner.server, mean_without({1: {2}}), steps=4)


def test_too_few_uploads_are_asked_for_again_with_other_masks() -> None:
    """Three of five must stay. In the first attempt three leave; in the second nobody does. The two
    that answered twice sent the same model under masks that have nothing in common."""
    engine = Leaving({(1, "round"): {0, 1, 2}}, times=1)
    runner = played(engine, rounds=1)
    assert close(runner.server, played(Inline(), rounds=1, secure_aggregation=False).server, 4)
    first, second = (answers for t, step, answers in engine.seen if step == "round")
    for cid in (3, 4):
        one, other = (bits_of_all(answers[cid].state) for answers in (first, second))
        assert abs((one ^ other).mean() - 0.5) < 5 / (2 * len(one) ** 0.5)
    assert not any(step == "unmask" for _, step, _ in engine.seen[:3])


def bits_of_all(state: State) -> np.ndarray:
    hidden = [v.numpy().reshape(-1) for k, v in sorted(state["model"].items()) if k != "@types"]
    return np.unpackbits(np.concatenate(hidden))


def test_a_round_without_enough_uploads_is_given_up() -> None:
    with pytest.raises(
        TooFewAnswers, match="2 of 5 clients answered, fewer than the 3 that secure"
    ):
        played(Leaving({(1, "round"): {0, 1, 2}}))


def test_a_sum_that_too_few_unmask_stops_the_run() -> None:
    """It is not asked again: late shares would give a second sum."""
    engine = Leaving({(1, "unmask"): {0, 1, 2}})
    with pytest.raises(NotUnmasked, match=r"2 of 5 clients .* helped to unmask .* it takes 3"):
        played(engine)
    assert [step for _, step, _ in engine.seen].count("round") == 1


def test_what_leaves_has_no_rows_and_no_number_as_it_is() -> None:
    engine = Leaving({})
    runner = played(engine, rounds=1)
    assert runner.records[0].rows == {}
    plain = Leaving({})
    played(plain, rounds=1, secure_aggregation=False)
    of_round = [next(a for _, step, a in e.seen if step == "round") for e in (engine, plain)]
    for cid in range(5):
        masked, before = of_round[0][cid], of_round[1][cid]
        assert (masked.n, before.n) == (ROWS_UNTOLD, len(DATA.client(cid).train))
        assert {v.dtype for v in masked.state["model"].values()} == {torch.uint8}
        for key, value in before.state["model"].items():
            assert masked.state["model"][key].shape == (*value.shape, 6)
    assert runner.clients.get(0)[SECURE].keys() == {"secret", "begun"}  # type: ignore[index]
    secret = runner.clients.get(0)[SECURE]["secret"].numpy().tobytes()  # type: ignore[index]
    for _, _, answers in engine.seen:
        for up in answers.values():
            for tree in up.state.values():
                assert all(secret not in v.numpy().tobytes() for v in tree.values())


def test_clipped_numbers_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """clip = 0.25 is below the largest weights of a fresh layer of 64 inputs, 1 / sqrt(8) on the
    second: the run goes on with clipped numbers, says how many, and its model keeps to the clip."""
    with caplog.at_level(logging.WARNING, "fedloom"):
        runner = played(Inline(), rounds=1, secure_aggregation="pairwise(clip=0.25)")
    clipped = runner.records[0].notes[SECURE]["clipped"]
    assert clipped > 0
    assert f"{clipped} numbers of uploads were clipped" in caplog.text
    assert "set secure_aggregation = 'pairwise(clip=0.5, bits=23)'" in caplog.text
    assert max(float(v.abs().max()) for v in runner.server["model"].values()) <= 0.25
    assert played(Inline(), rounds=1).records[0].notes[SECURE]["clipped"] == 0


def test_a_client_masks_nothing_without_keys() -> None:
    """A server that sends no keys, or a round of one, gets nothing."""
    from fedloom.core.client import client
    from fedloom.core.data import data_of
    from fedloom.core.message import Down, Plan
    from fedloom.core.round import Round, initial_server, send
    from fedloom.core.site import Visit

    program = experiment().program
    r = Round(program, Plan(1, clients=5), initial_server(program), [0])
    visit = Visit(program, 0, data_of(DATA, 0), send(r, 0))
    with pytest.raises(BadInput, match="the server sent no keys"):
        client(visit)
    alone = {
        "members": torch.tensor([0]),
        "publics": torch.zeros(1, 33, dtype=torch.uint8),
        "nonces": torch.zeros(1, 16, dtype=torch.uint8),
        "of": torch.tensor(list(b"train model"), dtype=torch.uint8),
        "attempt": torch.tensor(0),
    }
    down = Down(r.plan, {**visit.down.state, SECURE: alone})
    with pytest.raises(BadInput, match="fewer than 3"):
        client(replace(visit, down=down))


def test_rules_in_place_of_the_mean_are_refused() -> None:
    with pytest.raises(BadInput, match="aggregation = 'median' compares single uploads"):
        experiment(aggregation="median")


@pytest.mark.parametrize(
    ("text", "kind"), [("true", "pairwise"), ("False", None), (True, "pairwise")]
)
def test_a_flag_of_the_command_line_is_text(text: str | bool, kind: str | None) -> None:
    assert RunConfig.checked({"secure_aggregation": text}).secure_aggregation == kind


def test_compression_is_refused() -> None:
    with pytest.raises(BadInput, match=r"compression = 'top_k\(.*' is undone by the server"):
        experiment(compression="top_k(share=0.1)")


class Forging(Leaving):
    """One client sends something else as its public key."""

    def __init__(self, public: int | bytes) -> None:
        super().__init__({})
        self.public = public
        self.keys: dict[int, Tensor] = {}

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: object
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        for cid, up, own in super().clients(ids, job, ask):
            if isinstance(up, Up) and up.state.get(SECURE, {}).keys() == {"public"}:
                self.keys[cid] = up.state[SECURE]["public"]
                if cid == 2:
                    copied = isinstance(self.public, int)
                    forged = self.keys[self.public] if copied else as_tensor(self.public)
                    up = replace(up, state={SECURE: {"public": forged}})  # noqa: PLW2901
            yield cid, up, own


@pytest.mark.parametrize("public", [0, bytes(PUBLIC_BYTES - 1) + b"x"])
def test_who_sends_no_key_of_its_own_is_left_out(public: int | bytes) -> None:
    """Otherwise every honest client would refuse the round."""
    runner = played(Forging(public))
    for record in runner.records:
        assert record.absent == {2: "its public key is none, or another client's"}
    assert close(runner.server, mean_without({1: {2}, 2: {2}}), steps=4)


def test_hostile_clients_leave_alone_what_nobody_trains() -> None:
    """So that their uploads have the others' form, which masks need."""
    hostile = {"hostile": "collude(share=0.2)", "model": "mlp(hidden=[8], frozen='body.*')"}
    assert played(Inline(), **hostile).records[-1].absent == {}


def test_rounds_of_too_few_are_refused() -> None:
    with pytest.raises(BadInput, match="a round has 2 clients"):
        experiment(participation=0.4)


def test_what_is_in_the_clear_is_declared() -> None:
    """DBE says that it lost its constant, and nothing else of it is in the clear."""
    program = experiment(method="fedavg + dbe").program
    upload = {"mean_regularization": {"lost": torch.ones(1), "mean": torch.ones(3)}}
    assert clear_part(program, upload) == {"mean_regularization": {"lost": torch.ones(1)}}


def test_a_run_without_it_is_what_it_was() -> None:
    result = run("fedavg", DATA, model="mlp(hidden=[8])", rounds=1, engine="inline")
    assert SECURE not in result.server


# ------------------------------------------------------------------ the same step again


class AtSites(Leaving):
    """Clients of other people."""

    keeps_states = True


def run_at_sites(out: Path, engine: AtSites) -> Runner:
    """A new run in the folder, or the one that is there."""
    with RunFolder.open(out) if (out / "config.json").exists() else RunFolder.create(out) as folder:
        write_json(folder.config, {})
        runner = Runner(experiment(), engine, folder)
        runner.restore()
        runner.run()
        return runner


def test_a_second_sum_of_a_step_does_not_tell_a_single_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed when the sum over 0..4 is unmasked, and goes on from before it. Without
    client 2 the second sum would differ from the first by its upload alone; with everybody it is
    the same sum, and the run ends as one that nobody killed."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            run_at_sites(tmp_path, AtSites({}))
    without = AtSites({(1, "round"): {2}})
    with pytest.raises(NotUnmasked, match=r"the two would tell what client 2 sent; .* remove"):
        run_at_sites(tmp_path, without)
    assert "unmask" not in [step for _, step, _ in without.seen]
    runner = run_at_sites(tmp_path, AtSites({}))
    assert close(runner.server, played(Inline()).server, steps=0.001)
    lines = (tmp_path / "unmasked.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": step, "clients": [0, 1, 2, 3, 4]} for step in (0, 1)
    ]


def test_sums_that_differ_by_many_clients_may_both_be_had(tmp_path: Path) -> None:
    """Of {0..4} and {3..7}, six clients: their difference is of three against three."""
    sums = UnmaskedSums(tmp_path / "unmasked.jsonl")
    sums.begin(3, range(5))
    UnmaskedSums(sums.path).begin(3, range(3, 8))
    UnmaskedSums(sums.path).begin(4, range(4))
    with pytest.raises(NotUnmasked, match="what clients 3 and 8 sent"):
        UnmaskedSums(sums.path).begin(3, range(4, 9))
