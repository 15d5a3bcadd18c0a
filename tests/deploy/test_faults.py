"""Faults of a deployment with real processes: whoever is lost, late, dishonest or a stranger.

Two runs have all of them, because what costs time is Flower's processes: `stopped`, of the first
two sites, whose server and link are killed, and `eventful`, of the other three.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from trouble import (
    DEPLOY,
    A,
    B,
    C,
    D,
    FederationUnderTest,
    Reference,
    lapse,
    replayed,
    wait_gone,
    without_times,
)

from fedloom.deploy.processes.children import Child, end_all, free_ports
from fedloom.deploy.processes.federation import Run, is_connected, supernode
from fedloom.deploy.project.certificates import Authority, write_key_pair
from fedloom.record import RoundRecord
from helpers import LIMIT, finish, wait_until

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.xdist_group("federation"),
    pytest.mark.skipif(sys.platform == "win32", reason="kills processes by signals"),
]
REFUSED = "its reply was refused: "
KEPT_HERE = "Flower says: the site's gate does not let the answer out (form)"


@dataclass(frozen=True)
class Seen:
    """A run that ended, and the same run in one process."""

    run: Run
    records: list[RoundRecord]
    expected: Reference

    @property
    def absent(self) -> dict[int, Mapping[int, str]]:
        """Round -> who did not count in it, and why."""
        return {record.round: record.absent for record in self.records if record.absent}

    def check_orders(self, federation: FederationUnderTest, name: str, cid: int) -> None:
        """Whatever happened, a site was always asked to go on from what was counted last."""
        orders = federation.places[name].orders(self.run.settings.experiment)
        assert orders == [(t, self.expected.state_before(cid, int(t))) for t, _ in orders]


# ------------------------------------------------------------------ the server


@pytest.fixture(scope="module")
def stopped(federation: FederationUnderTest) -> Seen:
    """First there are too few sites. Then the server app is killed in round 2, when A is about to
    train, and the link in round 3, when B has trained and saved but not answered. In round 4 B
    answers too late. The deadline is many times what a round takes: A has to keep it in every
    round, and B in rounds 3 and 5, however busy the machine is."""
    places = federation.places
    places[A].trouble({"stops 2": "held before"})
    places[B].trouble({"stops 3": "held after", "stops 4": "held before"})
    settings = {"experiment": "stops", "rounds": 5, "sites": f"{A},{B}", "min_clients": 1}
    federation.up(A)
    federation.down(B)
    check_too_few(federation, settings)
    federation.up(A, B)

    run = federation.submit(settings)
    federation.wait_held(run, A, "stops 2")
    assert [record.round for record in federation.records(run)] == [1]
    federation.kill("flwr-serverapp")
    run.child.end()
    places[A].go("stops 2")

    run = federation.submit(settings)
    federation.wait_held(run, B, "stops 3")
    assert [record.round for record in federation.records(run)] == [1, 2]
    counted = federation.receipts(run)
    server_app = federation.find("flwr-serverapp")
    with federation.link_lost_and_found(A, B):
        federation.link.kill()
        wait_gone(server_app)  # it does not outlive the link
        places[B].go("stops 3")
        federation.link.end()
        federation.start_link(LIMIT)

    run = federation.submit({**settings, "deadline": 60})
    run.child.ready(lambda: len(federation.records(run)) == 4, LIMIT)
    places[B].go("stops 4")
    run.wait(LIMIT)
    records = federation.records(run)
    expected = replayed(federation.project, run, records)
    assert counted == expected.kept[1]
    return Seen(run, records, expected)


def check_too_few(federation: FederationUnderTest, settings: dict[str, object]) -> None:
    """`fedloom deploy run` waits, says who is missing, and fails; nothing is begun."""
    changed = {**settings, "min_clients": 2, "patience": 2}
    federation.approve(changed)
    words = [f"{key}={value}" for key, value in changed.items()]
    command = [sys.executable, "-c", DEPLOY, "run", federation.project.root, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    done = finish(process)
    assert done.code == 1
    assert "1 sites take part, fewer than the 2 that a round needs, after 2 s" in done.out
    assert "the run is finished:failed" in done.err
    assert not list(federation.project.root.rglob("stops/run"))


def test_a_run_stopped_three_times_ends_with_the_bytes_of_an_undisturbed_one(
    stopped: Seen, federation: FederationUnderTest
) -> None:
    """But for the late answer, whom nobody counts in either of them."""
    assert [record.cohort for record in stopped.records] == [(0, 1)] * 5
    assert federation.sha256(stopped.run) == stopped.expected.sha256
    assert without_times(stopped.records) == stopped.expected.records


def test_whoever_was_held_is_asked_again_from_the_same_state(
    stopped: Seen, federation: FederationUnderTest
) -> None:
    for cid, (name, twice) in enumerate(((A, "2"), (B, "3"))):
        rounds = [t for t, _ in federation.places[name].orders("stops")]
        assert rounds.count(twice) == 2
        assert set(rounds) == {"1", "2", "3", "4", "5"}
        stopped.check_orders(federation, name, cid)


def test_a_late_answer_does_not_count_and_the_round_goes_on(
    stopped: Seen, federation: FederationUnderTest
) -> None:
    """B goes on from round 3, which was good, when round 5 begins."""
    assert stopped.absent == {4: {1: f"no answer within {stopped.run.settings.deadline:g} s"}}
    *_, late, next_one = federation.places[B].orders("stops")
    assert late == ("4", stopped.expected.kept[2][1])
    assert next_one == ("5", stopped.expected.kept[2][1])


# ------------------------------------------------------------------ a run in which much happens


@dataclass(frozen=True)
class Eventful(Seen):
    """What was seen beside the run itself."""

    counted: str
    """The state of C that the server counted on when its node was killed."""
    on_disk: set[str]
    """The states C had then."""
    strangers: dict[str, tuple[int | None, str]]
    """Exit code and log of nodes that should be refused."""
    visitors: list[Path]
    """What the strangers were asked to do."""


@pytest.fixture(scope="module")
def eventful(federation: FederationUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Eventful:
    """C's node is killed in round 2, when the site has trained and saved but not answered, and
    strangers knock. B is held in round 3 until C is back and D, which is new, is connected. B gives
    bad answers in rounds 1, 4 and 5, and C in round 4. B, C and D are clients 0, 1 and 2."""
    scratch = tmp_path_factory.mktemp("strangers")
    places = federation.places
    places[B].trouble(
        {
            "eventful 1": "nan",
            "eventful 3": "held before",
            "eventful 4": "shape",
            "eventful 5": "name",
        }
    )
    places[C].trouble({"eventful 2": "held after", "eventful 4": "personal"})
    federation.down(A)
    federation.up(B, C)
    settings = {"sites": f"{B},{C},{D}", "rounds": 5, "min_clients": 1}
    run = federation.submit({"experiment": "eventful", **settings})
    federation.wait_held(run, C, "eventful 2")
    assert [record.round for record in federation.records(run)] == [1]
    counted, on_disk = federation.receipts(run)[1], places[C].states("eventful")
    federation.kill("fedloom.deploy.gate", C)
    lapse(federation.project, C)
    strangers = knock(federation, scratch)
    federation.wait_held(run, B, "eventful 3")
    supervisor = federation.nodes[C]
    supervisor.ready(lambda: supervisor.output().count("SuperNode ID:") == 2, LIMIT)
    federation.up(D)
    places[B].go("eventful 3")
    run.wait(LIMIT)
    records = federation.records(run)
    return Eventful(
        run,
        records,
        replayed(federation.project, run, records),
        counted,
        on_disk,
        strangers,
        list(scratch.rglob("orders.jsonl")),
    )


def test_a_round_goes_on_without_a_site_that_is_killed(eventful: Eventful) -> None:
    assert [record.round for record in eventful.records] == [1, 2, 3, 4, 5]
    assert list(eventful.absent[2]) == [1]
    # Flower finds it gone, or it was back before Flower was asked.
    assert re.search("Error: Node Unavailable|its node was started anew", eventful.absent[2][1])
    assert 3 not in eventful.absent


def test_a_site_that_comes_back_goes_on_from_what_the_server_counted(
    eventful: Eventful, federation: FederationUnderTest
) -> None:
    """On its disk were the state of round 1, and one of round 2 that no one else knows of."""
    assert eventful.counted in eventful.on_disk
    assert len(eventful.on_disk) == 2
    orders = federation.places[C].orders("eventful")
    assert orders[:2] == [("1", None), ("2", eventful.counted)]
    again, own = orders[2]
    assert again in ("3", "4")
    assert own == eventful.counted
    assert orders[-1][0] == "5"
    eventful.check_orders(federation, C, 1)


def test_a_site_that_joins_begins_as_new_and_takes_part_from_the_next_round(
    eventful: Eventful, federation: FederationUnderTest
) -> None:
    """Its second order names the state that `client_init` and one round of training make."""
    cohorts = [record.cohort for record in eventful.records]
    assert [2 in cohort for cohort in cohorts] == [False, False, False, True, True]
    first_state = eventful.expected.kept[3][2]
    assert federation.places[D].orders("eventful") == [("4", None), ("5", first_state)]


def test_whatever_happens_leaves_the_bytes_of_one_process(
    eventful: Eventful, federation: FederationUnderTest
) -> None:
    """The reference has the same cohorts, and counts nothing of who was absent."""
    assert federation.sha256(eventful.run) == eventful.expected.sha256
    assert without_times(eventful.records) == eventful.expected.records


def test_bad_answers_are_named_and_the_rounds_go_on(
    eventful: Eventful, federation: FederationUnderTest
) -> None:
    """They count as if they had not come: in round 2 B is still new. What is not of the declared
    form does not even leave its site."""
    assert eventful.absent[1] == {0: f"{REFUSED}'model/body.1.weight' is not finite"}
    assert eventful.absent[4] == {0: KEPT_HERE, 1: KEPT_HERE}
    assert eventful.absent[5] == {0: KEPT_HERE}
    orders = federation.places[B].orders("eventful")
    assert [t for t, _ in orders] == ["1", "2", "3", "4", "5"]
    assert orders[1] == ("2", None)
    assert orders[3][1] == orders[4][1] == eventful.expected.kept[2][0]
    eventful.check_orders(federation, B, 0)


# ------------------------------------------------------------------ strangers


def knock(federation: FederationUnderTest, scratch: Path) -> dict[str, tuple[int | None, str]]:
    """Nodes that call themselves D, which is not there yet, each with something wrong."""
    write_key_pair(scratch / "other.key", scratch / "other.pub", D)
    Authority("another").save(scratch / "other.crt", scratch / "authority.key")
    known = federation.sites[D]
    wrong = {
        "no key": {"key": None},
        "other key": {"key": scratch / "other.key"},
        "other authority": {"ca": scratch / "other.crt"},
    }
    nodes: dict[str, Child] = {}
    for (what, changes), port in zip(wrong.items(), free_ports(len(wrong)), strict=True):
        folder = scratch / what.replace(" ", "-")
        shutil.copytree(federation.places[D].folder, folder)
        changed = known.model_copy(update={"port": port, "state": folder / "state", **changes})
        nodes[what] = supernode(folder / "site.toml", changed, folder / "log").start()
    try:
        for node in nodes.values():
            wait_until(lambda node=node: not node.alive or is_connected(node), pause=0.2)
    finally:
        end_all(nodes.values())
    return {what: (node.code, node.output()) for what, node in nodes.items()}


@pytest.mark.parametrize(
    ("what", "ends_with", "why"),
    [
        ("no key", 0, "terminated gracefully"),
        ("other key", 0, "terminated gracefully"),
        ("other authority", 1, "certificate verify failed"),
    ],
)
def test_a_stranger_never_becomes_a_client(
    what: str, ends_with: int, why: str, eventful: Eventful
) -> None:
    """It ends by itself, was asked for nothing, and the others went on. (A SuperNode whose key the
    guard refuses stops with code 0; `deploy node` adds what that means.)"""
    code, log = eventful.strangers[what]
    assert code == ends_with
    assert why in log
    assert "SuperNode ID:" not in log
    assert not eventful.visitors
    assert [2 in record.cohort for record in eventful.records[:3]] == [False] * 3
