"""What `test_ray.py` asserts on: every start of Ray, in a network namespace of its own.

Ray opens connections to the outside when it starts, so this runs as a script under `unshare -n`
and refuses to run elsewhere. It prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from test_pool import Deadly, Faulty, build

from fedloom.core.method import Method
from fedloom.data import FederatedData
from fedloom.engines import actor
from fedloom.engines import ray as ray_engine
from fedloom.engines.inline import Inline
from fedloom.engines.ray import Ray
from fedloom.launch.start import Result, start
from fedloom.record import RoundRecord
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.watcher import RunView, Watcher
from helpers import LIMIT, digits, outcome, wait_until
from own_network import raise_loopback
from patient_ray import wait_for_nodes

Report = dict[str, Any]

EXPRESSIONS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedrep(adapt_epochs=2) + control_variates", {"participation": 0.6, "rounds": 3}),
    ("ditto + model_contrast", {"newcomers": 1, "protocol": "fedpac"}),
    ("fedavg + dbe", {"augment": "flip", "protocol": "dbe"}),
    ("local", {"model": "mlp(hidden=[8]) | mlp(hidden=[6, 5])"}),
    ("fedpac", {"participation": 0.8, "rounds": 3}),
    ("fedper", {"memory": 1e-6}),  # all states on the disk, so none is the actor's
]


@dataclass(frozen=True, kw_only=True)
class Once(Method):
    """Ends the process that trains client 2, the first time. Keeps a personal head."""

    name: ClassVar[str] = "once"
    marker: str = ""
    shared: str = "body.*"

    def loss(self, b: Any, s: Any) -> Any:
        if s.cid == 2 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os._exit(77)
        return super().loss(b, s)


@dataclass(frozen=True, kw_only=True)
class Slow(Method):
    """Writes down who is training; takes its time as long as a file is there."""

    name: ClassVar[str] = "slow"
    folder: str = ""
    shared: str = "body.*"

    def loss(self, b: Any, s: Any) -> Any:
        Path(self.folder, f"round-{s.plan.t}-{os.getpid()}").touch()
        if Path(self.folder, "slow").exists():
            time.sleep(0.2)
        return super().loss(b, s)


def digest(result: Result) -> str:
    """Of all that a run says."""
    return hashlib.sha256(repr(outcome(result)).encode()).hexdigest()


def both(experiment: Experiment, engine: Ray) -> list[str]:
    """The digest of a run on the engine, and on the reference."""
    return [digest(start(experiment, e)) for e in (engine, Inline())]


def of_this_namespace() -> dict[int, str]:
    """Other processes that can only have been started from here."""
    here, processes = os.readlink("/proc/self/ns/net"), {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):  # ended in between; of one that nobody waited for, no link
                if os.readlink(folder / "ns/net") == here:
                    processes[int(folder.name)] = (folder / "cmdline").read_text()
    return processes


def actors() -> set[int]:
    return {pid for pid, name in of_this_namespace().items() if name.startswith("ray::Actor")}


def raised(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except Exception as e:
        return [type(e).__name__, str(e), str(e.__cause__)]
    return []


# ------------------------------------------------------------------ Ray started by the engine


def on_this_machine(scratch: Path) -> Report:
    """Everything that two actors on one node can show."""
    os.environ["RAY_ADDRESS"] = "127.0.0.1:1"  # no address means a Ray of its own, all the same
    engine = Ray(2)
    ends = signal.getsignal(signal.SIGTERM)
    report: Report = {
        "unreachable": raised(lambda: start(build("fedavg"), Ray(2, address="127.0.0.1:1")))
    }
    try:
        report["same"] = {m: both(build(m, **s), engine) for m, s in EXPRESSIONS}
        alive = actors()
        report["sigterm as before"] = signal.getsignal(signal.SIGTERM) == ends
        report["arrays"] = both(arrays(), engine)
        report["several inputs"] = both(several_inputs(), engine)
        report["imported"] = both(imported(), engine)
        report["stored arrays"] = stored_arrays(engine)
        report["actors"] = [sorted(alive), sorted(actors())]
        report["user error"] = raised(lambda: start(build("fedavg", lr=1e30), engine))
        report["error"] = raised(lambda: start(build(Faulty()), engine))
        report["after the error"] = both(build("fedper"), engine)
        alive = actors()
        report["once"] = both(build(Once(marker=str(scratch / "once"))), engine)
        report["once ended"] = len(alive - actors())
        report["killed"] = killed_between_rounds(engine)
        report["deadly"] = raised(lambda: start(build(Deadly()), engine))
    finally:
        engine.close()
        del os.environ["RAY_ADDRESS"]
    report["left behind"] = left_behind()
    engine.close()  # twice is fine
    return report


def arrays() -> Experiment:
    """A user's own arrays, which are in no file."""
    rng = np.random.default_rng(0)
    sites = [
        (rng.normal(size=(12 + i, 3)).astype(np.float32), np.arange(12 + i) % 2) for i in range(3)
    ]
    config = RunConfig(method="fedper", rounds=2, model="mlp(hidden=[4])")
    return Experiment.build(config, data=FederatedData.from_clients(sites))


def several_inputs() -> Experiment:
    """A table beside token ids of unlike length."""
    rng, y = np.random.default_rng(0), np.arange(12) % 2
    ids = [rng.integers(0, 9, int(n)) for n in rng.integers(1, 5, 12)]
    sites = [({"table": rng.normal(size=(12, 3)), "ids": ids}, y) for _ in range(2)]
    config = RunConfig(method="fedper", rounds=2, model="fusion(width=4)")
    return Experiment.build(config, data=FederatedData.from_clients(sites))


def imported() -> Experiment:
    """A method and a network from a file that the actors, who are there already, do not know."""
    file = Path(__file__).parent.parent / "own_code/own_things.py"
    own = {"method": "small_heads", "model": f"{file}:Net", "augment": "darken"}
    few = {"partition": "iid + scarce(size=20)", "clients": 3, "rounds": 2}
    return Experiment.build(RunConfig(imports=(str(file),), **own, **few))


def stored_arrays(engine: Ray) -> Report:
    """What an actor sees of data that are memory-mapped files here."""
    import ray

    data = digits(((0, 1), 20), ((2, 3), 20)).shared()
    assert isinstance(data.source.x, np.memmap)
    start(Experiment.build(RunConfig(rounds=1, model="mlp(hidden=[4])"), data=data), engine)
    source = ray.get(engine._run[1]).source
    return {
        "mapped": isinstance(source.x, np.memmap),
        "path": source.path,
        "writable": source.x.flags.writeable,
        "equal": bool((source.x == data.source.x).all()),
    }


def killed_between_rounds(engine: Ray) -> Report:
    """The actor is gone with the states it kept; the driver has them too. The one that replaces it
    takes part in rounds 4 and 5, and is asked for clients that were not in round 3."""
    import ray

    experiment = build("fedper", rounds=5, participation=0.6)

    class Killer(Watcher):
        def step(self, run: RunView, record: RoundRecord) -> None:
            if record.round == 2:
                ray.kill(engine._members[0].handle)
            if record.round == 3:
                ray.wait([engine._members[0].under_way[0][0]], timeout=LIMIT)

    on_ray = digest(start(experiment, engine, [Killer()]))
    return {
        "runs": [on_ray, digest(start(experiment, Inline()))],
        "homes": sorted({str(engine._where.home(cid)) for cid in range(5)}),
    }


def left_behind() -> list[str]:
    """Processes that are still there some seconds after the end."""
    end = time.monotonic() + 120
    while (left := of_this_namespace()) and time.monotonic() < end:
        time.sleep(0.1)
    return list(left.values())


# ------------------------------------------------------------------ a cluster that was there


def on_two_nodes(scratch: Path) -> Report:
    """A head and one node more, one CPU each."""
    import ray
    from ray.cluster_utils import Cluster

    # Silence of two seconds is death: by default it takes more than fifteen.
    quick = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 4,
    }
    common = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**common, "_system_config": quick})
    second = cluster.add_node(num_cpus=1)
    report: Report = {"sent": sent(cluster.address)}
    report["disconnected"] = not ray.is_initialized()
    report["still there"] = (
        len(cluster.list_all_nodes()) == 2 and cluster.remaining_processes_alive()
    )
    engine = Ray(2, address=cluster.address)
    try:
        report |= lost_node(
            engine, scratch, lambda: cluster.remove_node(second, allow_graceful=False)
        )
    finally:
        engine.close()
        cluster.shutdown()
    report["left behind"] = left_behind()
    return report


def lost_node(engine: Ray, scratch: Path, remove: Callable[[], None]) -> Report:
    """The second node goes while its actor trains in the second of three rounds."""
    import ray

    experiment = build(Slow(folder=str(scratch)), rounds=3)
    start(build("fedavg", rounds=1), engine)
    placed = {
        ray.get(m.handle.__ray_call__.remote(lambda self: _node_and_process()))
        for m in engine._members
    }
    head = ray.get_runtime_context().get_node_id()
    (away,) = [pid for node, pid in placed if node != head]
    (scratch / "slow").touch()

    def wait_and_remove() -> None:
        wait_until((scratch / f"round-2-{away}").exists)
        remove()

    thread = threading.Thread(target=wait_and_remove)
    thread.start()
    on_ray = digest(start(experiment, engine))
    thread.join()
    (scratch / "slow").unlink()
    processes = {int(p.name.rpartition("-")[2]) for p in scratch.glob("round-3-*")}
    return {
        "nodes before": len({node for node, _ in placed}),
        "nodes after": sum(n["Alive"] for n in ray.nodes()),
        "the lost one in round 3": away in processes,
        "lost node": [on_ray, digest(start(experiment, Inline()))],
    }


def _node_and_process() -> tuple[str, int]:
    import ray

    return ray.get_runtime_context().get_node_id(), os.getpid()


def sent(address: str) -> Report:
    """What goes where, with one actor, so that all is always at its actor."""
    engine = Ray(1, address=address)
    report: Report = {}
    try:
        for name, experiment in {
            "fedavg": build("fedavg", rounds=3),
            "fedper": build("fedper", rounds=3),
            "from the disk": build("fedper", rounds=2, memory=1e-6),
        }.items():
            with counted() as counts:
                result = start(experiment, engine)
            report[name] = {**counts, "kept": sum(bool(s) for s in result.clients.values())}
    finally:
        engine.close()
    return report


@contextmanager
def counted() -> Iterator[Report]:
    """Puts into the object store; of every message how many states it left with the actor, how
    many clients it is for and how many bytes of tensors it carries."""
    import ray

    counts: Report = {"puts": 0, "messages": []}
    put, addressed = ray.put, actor.addressed

    def counting_put(value: Any) -> Any:
        counts["puts"] += 1
        return put(value)

    def counting_addressed(*args: Any) -> Any:
        parts = addressed(*args)
        (head, _, _), *tensors = parts
        carried = sum(len(part) for part in tensors)
        row = {"round": head["plan"]["t"], "task": head["task"], "clients": len(head["ids"])}
        counts["messages"].append({**row, "yours": len(head["yours"]), "bytes": carried})
        return parts

    ray.put, ray_engine.addressed = counting_put, counting_addressed
    try:
        yield counts
    finally:
        ray.put, ray_engine.addressed = put, addressed


def main() -> None:
    raise_loopback()
    wait_for_nodes()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets: a short path
        os.environ["RAY_TMPDIR"] = folder
        scratch = Path(folder)
        report = {"here": on_this_machine(scratch), "cluster": on_two_nodes(scratch)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
