"""The Ray engine gives the reference engine's bytes, also when actors and nodes are lost.

Ray itself runs in `ray_checks.py`, once for all tests, in a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray_checks import EXPRESSIONS
from test_pool import build

from fedloom.engines import make_engine
from fedloom.engines.ray import Ray
from fedloom.errors import BadInput
from fedloom.launch.start import start
from helpers import LIMIT
from own_network import namespace

pytestmark = pytest.mark.xdist_group("ray")  # which takes a minute to start
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What the script printed."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    path = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [*namespace(), sys.executable, str(HERE / "ray_checks.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
    )
    try:
        out, err = process.communicate(timeout=2 * LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # Ray's processes are in the script's group
        raise
    assert process.returncode == 0, err[-3000:]
    printed: dict[str, Any] = json.loads(out.splitlines()[-1])
    return printed


# ------------------------------------------------------------------ a Ray of our own


@pytest.mark.parametrize("method", [method for method, _ in EXPRESSIONS])
def test_the_same_bytes_and_numbers(method: str, report: dict[str, Any]) -> None:
    """One engine for all of them, one after another: partial cohorts, newcomers, special rounds,
    final adaptation, unlike nets, a different download for each client, states on the disk."""
    on_ray, inline = report["here"]["same"][method]
    assert on_ray == inline


def test_sigterm_still_stops_a_run_as_ctrl_c_does(report: dict[str, Any]) -> None:
    """Ray puts a handler in its place that ends the process without a word."""
    assert report["here"]["sigterm as before"]


def test_an_error_of_ray_around_an_actor_is_known_by_its_class() -> None:
    """By which the engine tells that an actor, for instance out of memory, is lost."""
    errors = pytest.importorskip("ray.exceptions")
    for cause in (errors.RaySystemError("no buffer"), MemoryError()):
        raised = errors.RayTaskError("answer", "", cause).as_instanceof_cause()
        assert isinstance(raised, errors.RayTaskError)
        assert isinstance(raised, errors.RaySystemError | MemoryError)


def test_different_runs_differ(report: dict[str, Any]) -> None:
    """What is compared above is not the same for every run."""
    assert len({inline for _, inline in report["here"]["same"].values()}) == len(EXPRESSIONS)


def test_arrays_in_memory(report: dict[str, Any]) -> None:
    on_ray, inline = report["here"]["arrays"]
    assert on_ray == inline


def test_several_inputs(report: dict[str, Any]) -> None:
    on_ray, inline = report["here"]["several inputs"]
    assert on_ray == inline


def test_what_a_file_brings(report: dict[str, Any]) -> None:
    on_ray, inline = report["here"]["imported"]
    assert on_ray == inline


def test_data_are_in_the_object_store_and_in_no_file(report: dict[str, Any]) -> None:
    """Not writable: arrays of the object store itself, not copies of them."""
    assert report["here"]["stored arrays"] == {
        "mapped": False,
        "path": None,
        "writable": False,
        "equal": True,
    }


def test_actors_stay_from_run_to_run(report: dict[str, Any]) -> None:
    first, last = report["here"]["actors"]
    assert first == last
    assert len(first) == 2


def test_a_program_error_arrives_with_its_trace_and_the_engine_goes_on(
    report: dict[str, Any],
) -> None:
    kind, message, cause = report["here"]["error"]
    assert kind == "HookError"
    assert message == "faulty.loss at client 2, round 1 (phase 'local'): KeyError: 'no such key'"
    assert 'return loss if s.cid != 2 else loss + {}["no such key"]' in cause
    on_ray, inline = report["here"]["after the error"]
    assert on_ray == inline


def test_a_users_error_keeps_its_class(report: dict[str, Any]) -> None:
    kind, message, _ = report["here"]["user error"]
    assert kind == "TrainingError"
    assert "client" in message
    assert "Traceback" not in message


def test_an_actor_that_dies_at_a_client_changes_nothing(report: dict[str, Any]) -> None:
    on_ray, inline = report["here"]["once"]
    assert on_ray == inline
    assert report["here"]["once ended"] == 1


def test_an_actor_killed_with_its_clients_states_changes_nothing(report: dict[str, Any]) -> None:
    on_ray, inline = report["here"]["killed"]["runs"]
    assert on_ray == inline
    assert "0" in report["here"]["killed"]["homes"]  # its replacement keeps states again


def test_clients_that_end_every_actor_are_named(report: dict[str, Any]) -> None:
    kind, message, _ = report["here"]["deadly"]
    assert kind == "WorkerLost"
    assert "ended 3 times at client 2 (" in message
    assert message.endswith("then resume")


def test_nothing_is_left_behind(report: dict[str, Any]) -> None:
    """Of all processes in the namespace; while it ran, the actors were among them."""
    assert report["here"]["left behind"] == []
    assert report["cluster"]["left behind"] == []


# ------------------------------------------------------------------ a cluster of two nodes


def test_a_node_lost_in_mid_round_changes_nothing(report: dict[str, Any]) -> None:
    """There were actors on both nodes; the one that trained in round 2 on the second node is gone
    in round 3, and there is no CPU for another."""
    cluster = report["cluster"]
    assert (cluster["nodes before"], cluster["nodes after"]) == (2, 1)
    assert not cluster["the lost one in round 3"]
    on_ray, inline = cluster["lost node"]
    assert on_ray == inline


def test_a_cluster_that_was_there_stays(report: dict[str, Any]) -> None:
    assert report["cluster"]["disconnected"]
    assert report["cluster"]["still there"]


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_common_tensors_are_put_once_per_call(method: str, report: dict[str, Any]) -> None:
    """Program and data, then three rounds of training and three evaluations: 2 + 3 + 3 puts; and
    no message carries a tensor, for personal heads are where they were made."""
    sent = report["cluster"]["sent"][method]
    assert sent["puts"] == 2 + 3 + 3
    assert len(sent["messages"]) >= 6
    assert {message["bytes"] for message in sent["messages"]} == {0}


def test_what_clients_keep_is_not_sent_again(report: dict[str, Any]) -> None:
    """FedPer's five clients have no state in the first round's training; then each of them has, in
    two trainings and three evaluations: 5 * 5 states that stay where they are."""
    sent = report["cluster"]["sent"]["fedper"]
    assert sent["kept"] == 5
    messages = [(m["round"], m["task"], m["clients"], m["yours"]) for m in sent["messages"]]
    assert {yours for t, task, _, yours in messages if (t, task) == (1, "client")} == {0}
    assert sum(yours for *_, yours in messages) == 25
    assert sum(clients for *_, clients, _ in messages) == 30


def test_states_from_the_disk_are_sent(report: dict[str, Any]) -> None:
    """With no memory for states every one of them is read from the disk, so it is not the object
    that the actor returned. A head of 8 x 10 weights and 10 biases has 360 bytes, five clients are
    trained once again: 5 * 360; evaluations read what is on the disk too: 2 * 5 * 360."""
    sent = report["cluster"]["sent"]["from the disk"]
    assert sum(m["yours"] for m in sent["messages"]) == 0
    assert sum(m["bytes"] for m in sent["messages"]) == 3 * 5 * 360


# ------------------------------------------------------------------ without starting Ray


def test_an_address_where_nobody_listens(report: dict[str, Any]) -> None:
    kind, message, _ = report["here"]["unreachable"]
    assert kind == "BadInput"
    assert message.startswith("cannot reach Ray at '127.0.0.1:1' (")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = make_engine("ray")
    with pytest.raises(BadInput, match=r"pip install 'fedloom\[ray\]'"):
        start(build("fedavg"), engine)
    engine.close()


def test_ray_is_imported_only_when_it_is_used() -> None:
    code = "import sys, fedloom.engines as e; e.make_engine('ray'); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_is_needed() -> None:
    with pytest.raises(BadInput, match="at least one worker, got 0"):
        Ray(0)
