"""Faults of a deployment with real processes: whoever is lost, late, dishonest or a stranger."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedloom.runs.scores import Record
from trouble import DEPLOY, LIMIT, A, B, C, D, Reference, Trial, reference, told, trial

from fedloom.deploy.certificates import Authority, write_key_pair
from fedloom.deploy.federation import Run, is_connected, supernode
from fedloom.deploy.processes import Child, end_all, free_ports
from helpers import finish, wait_until

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """One link and four sites for all tests, each with an experiment of its own."""
    with trial(tmp_path_factory.mktemp("faults")) as made:
        yield made


# ------------------------------------------------------------------ the server


def test_a_run_stopped_three_times_ends_with_the_bytes_of_an_undisturbed_one(
    federation: Trial,
) -> None:
    """First there are too few sites. Then the server app is killed in round 2, when A is about to
    train, and the link in round 3, when B has trained and saved but not answered."""
    places = federation.places
    places[A].trouble({"stops 2": "held before"})
    places[B].trouble({"stops 3": "held after"})
    settings = {"experiment": "stops", "rounds": 3, "sites": f"{A},{B}"}
    federation.nodes[B].end()
    federation.up(A)
    check_too_few(federation, settings)
    federation.up(A, B)

    run = federation.submit(settings)
    federation.wait_held(run, A, "stops 2")
    assert [r["round"] for r in federation.records(run)] == [1]
    federation.kill("flwr-serverapp")
    places[A].go("stops 2")

    run = federation.submit(settings)
    federation.wait_held(run, B, "stops 3")
    assert [r["round"] for r in federation.records(run)] == [1, 2]
    counted = federation.receipts(run)
    federation.link.kill()
    wait_until(lambda: not federation.find("flwr-serverapp"), LIMIT)  # it does not outlive the link
    places[B].go("stops 3")
    federation.link.end()
    federation.start_link(LIMIT)

    run = federation.submit(settings)
    run.wait(LIMIT)
    records = federation.records(run)
    assert told(records) == told((expected := undisturbed(federation, run, 3)).records)
    assert federation.summary(run)["state_sha256"] == expected.sha256
    # Whoever was held was asked twice; every round was asked for from one and the same state.
    asked = {name: places[name].orders("stops") for name in (A, B)}
    assert [t for t, _ in asked[A]].count("2") == 2
    assert [t for t, _ in asked[B]].count("3") == 2
    for cid, name in enumerate((A, B)):
        assert [t for t, _ in sorted(set(asked[name]))] == ["1", "2", "3"]
        assert asked[name][-1] == ("3", counted[cid])


def check_too_few(federation: Trial, settings: dict[str, object]) -> None:
    """`fedloom deploy run` waits, says who is missing, and fails; nothing is begun."""
    words = [f"{key}={value}" for key, value in {**settings, "patience": 5}.items()]
    command = [sys.executable, "-c", DEPLOY, "run", federation.project.root, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    done = finish(process, LIMIT)
    assert done.code == 1
    assert "1 sites are connected, fewer than the 2 that a round needs, after 5 s" in done.out
    assert "the run is finished:failed" in done.err
    assert not list(federation.project.root.rglob("stops/run"))


def undisturbed(federation: Trial, run: Run, rounds: int) -> Reference:
    everybody = list(range(len(run.settings.sites)))
    return reference(federation.project, run, [{"cohort": everybody}] * rounds)


# ------------------------------------------------------------------ sites that come and go


@dataclass(frozen=True)
class ComeAndGo:
    """What was seen of a run that lost a site, got it back, and was joined by another."""

    records: list[Record]
    sha256: str
    expected: Reference
    counted: str
    """The state of the lost site that the server counts on, when it was lost."""
    on_disk: set[str]
    """The states it had then."""
    strangers: dict[str, tuple[int | None, str]]
    """Exit code and log of nodes that should be refused."""
    visitors: list[Path]
    """What the strangers were asked to do."""


@pytest.fixture(scope="module")
def come_and_go(federation: Trial, tmp_path_factory: pytest.TempPathFactory) -> ComeAndGo:
    """C's node is killed in round 2, when the site has trained and saved but not answered. A is
    held in round 3 until C is back and D, which is new, is there; rounds 4 and 5 have all four.
    Strangers knock in the meantime."""
    scratch = tmp_path_factory.mktemp("strangers")
    places = federation.places
    places[C].trouble({"lost 2": "held after"})
    places[A].trouble({"lost 3": "held before"})
    federation.up(A, B, C)
    run = federation.submit({"experiment": "lost", "rounds": 5})
    federation.wait_held(run, C, "lost 2")
    assert [r["round"] for r in federation.records(run)] == [1]
    counted, on_disk = federation.receipts(run)[2], places[C].states("lost")
    federation.kill("flower-supernode", C)
    strangers = knock(federation, scratch)
    federation.wait_held(run, A, "lost 3")
    supervisor = federation.nodes[C]
    supervisor.ready(lambda: supervisor.said().count("SuperNode ID:") == 2, LIMIT)
    federation.up(D)
    places[A].go("lost 3")
    run.wait(LIMIT)
    records = federation.records(run)
    return ComeAndGo(
        records,
        federation.summary(run)["state_sha256"],
        reference(federation.project, run, records),
        counted,
        on_disk,
        strangers,
        list(scratch.rglob("orders.jsonl")),
    )


def test_a_round_goes_on_without_a_site_that_is_killed(come_and_go: ComeAndGo) -> None:
    assert [r["round"] for r in come_and_go.records] == [1, 2, 3, 4, 5]
    absent = {r["round"]: r["absent"] for r in come_and_go.records if "absent" in r}
    assert list(absent) == [2]
    assert list(absent[2]) == ["2"]
    # Flower finds it gone, or it was back before Flower was asked.
    assert re.search("Error: Node Unavailable|its node was started anew", absent[2]["2"])


def test_a_site_that_comes_back_goes_on_from_what_the_server_counted(
    come_and_go: ComeAndGo, federation: Trial
) -> None:
    """On its disk were the state of round 1, and one of round 2 that no one else knows of."""
    assert come_and_go.counted in come_and_go.on_disk
    assert len(come_and_go.on_disk) == 2
    orders = federation.places[C].orders("lost")
    assert orders[:2] == [("1", None), ("2", come_and_go.counted)]
    again, own = orders[2]
    assert again in ("3", "4")
    assert own == come_and_go.counted
    assert orders[-1][0] == "5"


def test_a_site_that_joins_begins_as_new_and_takes_part_from_the_next_round(
    come_and_go: ComeAndGo, federation: Trial
) -> None:
    """Its second order names the state that `client_init` and one round of training make."""
    cohorts = [r["cohort"] for r in come_and_go.records]
    assert [3 in cohort for cohort in cohorts] == [False, False, False, True, True]
    first_state = come_and_go.expected.kept[3][3]
    assert federation.places[D].orders("lost") == [("4", None), ("5", first_state)]


def test_who_comes_and_goes_leaves_the_bytes_of_one_process(come_and_go: ComeAndGo) -> None:
    """The reference has the same cohorts, and counts nothing of C in round 2."""
    assert come_and_go.sha256 == come_and_go.expected.sha256
    assert told(come_and_go.records) == told(come_and_go.expected.records)


# ------------------------------------------------------------------ strangers


def knock(federation: Trial, scratch: Path) -> dict[str, tuple[int | None, str]]:
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
            wait_until(lambda node=node: not node.alive or is_connected(node), LIMIT)
    finally:
        end_all(nodes.values())
    return {what: (node.code, node.said()) for what, node in nodes.items()}


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("no key", "SuperNode authentication is enabled"),
        ("other key", "Failed to activate SuperNode"),
        ("other authority", "certificate verify failed"),
    ],
)
def test_a_stranger_never_becomes_a_client(what: str, why: str, come_and_go: ComeAndGo) -> None:
    """It ends with an error that says why, was asked for nothing, and the others went on."""
    code, said = come_and_go.strangers[what]
    assert code == 1
    assert why in said
    assert "SuperNode ID:" not in said
    assert not come_and_go.visitors
    assert [3 in r["cohort"] for r in come_and_go.records[:3]] == [False] * 3


# ------------------------------------------------------------------ bad answers, and late ones

REFUSED = "its reply was refused: "


def test_bad_and_late_answers_are_named_and_the_rounds_go_on(
    federation: Trial, come_and_go: ComeAndGo
) -> None:
    """A and B are honest. What C and D get wrong counts as if they had not answered: C goes on
    from round 2, which was good, and D in round 4 is still new.

    The deadline is four times what a round with four sites took here before.
    """
    places = federation.places
    places[A].trouble({})
    places[B].trouble({})
    places[C].trouble({"bad 1": "nan", "bad 3": "held before"})
    places[D].trouble({"bad 1": "shape", "bad 2": "name", "bad 3": "personal"})
    federation.up(A, B, C, D)
    deadline = max(20, 4 * round(come_and_go.records[-1]["seconds"]))
    run = federation.submit({"experiment": "bad", "rounds": 4, "deadline": deadline})
    run.child.ready(lambda: len(federation.records(run)) == 3, LIMIT)
    places[C].go("bad 3")
    run.wait(LIMIT)
    records = federation.records(run)
    assert [r["cohort"] for r in records] == [[0, 1, 2, 3]] * 4
    assert [r.get("absent", {}) for r in records] == [
        {
            "2": f"{REFUSED}'model/body.1.weight' is not finite",
            "3": f"{REFUSED}'model/body.1.weight' is torch.float32 [3], not torch.float32 [16, 64]",
        },
        {"3": f"{REFUSED}it holds the unknown tensor 'model/extra'"},
        {
            "2": f"no answer within {deadline} s",
            "3": f"{REFUSED}it holds the personal tensor 'head.bias'",
        },
        {},
    ]
    expected = reference(federation.project, run, records)
    assert federation.summary(run)["state_sha256"] == expected.sha256
    assert told(records) == told(expected.records)
    after_round_2 = expected.kept[1][2]
    assert places[C].orders("bad") == [
        *(("1", None), ("2", None), ("3", after_round_2), ("4", after_round_2))
    ]
    assert places[D].orders("bad") == [(t, None) for t in "1234"]
