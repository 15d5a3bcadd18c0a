"""A deployment whose processes are killed in turn, beside the same run in one process.

    python benchmarks/soak_deployment.py --rounds 2000 --kills 100     about two hours
    python benchmarks/soak_deployment.py --minutes 30                  as far as it comes
    python benchmarks/soak_deployment.py --rounds 60 --kills 0 --others 3

Two sites and a link with TLS and keys, as real processes on loopback (those of the tests, see
`tests/deploy/trouble.py`). At random rounds `kill -9` hits the server app, the link or a site's
node, and SIGTERM a node; what was killed is started again, and the run is submitted again where it
ended. A round needs both sites, so the bytes have to be those of a run in which nothing happened.
Memory and handles of link and nodes are read all the while, by the rounds that a process has seen.
Results go beside the others, in `benchmarks/results/soak.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "deploy"), str(HERE.parent / "tests")]

from endurance.places import CLOCK, JUMPS, Disk, again_with_a_clock, set_clock  # noqa: E402
from endurance.readings import WARM_UP, file_sizes, slope  # noqa: E402
from sites import with_policy  # noqa: E402
from soak import RESULTS, Rounds, saved  # noqa: E402
from trouble import (  # noqa: E402
    PERMISSIVE,
    A,
    B,
    FederationUnderTest,
    federation_under_test,
    lapse,
    lapse_apps,
    undisturbed,
    wait_gone,
    without_times,
)

from fedloom.deploy.processes.children import ChildFailed  # noqa: E402
from fedloom.deploy.processes.federation import Run  # noqa: E402
from fedloom.deploy.project.folder import Project  # noqa: E402
from helpers import LIMIT, wait_until  # noqa: E402

STILL = 15.0
"""Seconds that a trouble lasts."""
PATIENCE = 120.0
"""Seconds after which an operator thinks that a run stands."""
KILLS = ("kill, the server app", "kill, a site's node", "kill, the link")
TERM = "term, a site's node"
OF_DISKS = ("full disk of the server", "full disk of a site", "read-only disk of the server")
OTHERS = (*OF_DISKS, "clock", "memory")
FEWEST_BLOCKS = 8
"""Of readings, for a line through them."""
BETWEEN = 10
"""Rounds between two readings of memory and handles."""


class Reading(NamedTuple):
    """What a process holds, by the rounds that it has seen since it was started."""

    process: str
    start: int
    """The round in which it was started."""
    age: int
    memory_MB: float
    handles: int


class Disks(NamedTuple):
    """Small file systems."""

    server: Disk
    site: Disk

    @classmethod
    @contextmanager
    def mounted(cls, project: Project) -> Iterator[Disks]:
        """Under the server's runs and a site's state."""
        site = project.site(B).parent / "state"
        with (
            Disk.mounted(project.root / "server" / "runs", megabytes=100) as of_server,
            Disk.mounted(site, megabytes=100) as of_site,
        ):
            if not (of_server.own and of_site.own and CLOCK in os.environ):
                raise SystemExit("--others needs root, for small disks, and a C compiler")
            yield cls(of_server, of_site)


class Soak:
    """One run."""

    def __init__(
        self,
        federation: FederationUnderTest,
        rounds: int,
        disks: Disks | None,
        chance: random.Random,
    ) -> None:
        self.federation, self.disks, self.chance = federation, disks, chance
        self.lost: list[str] = []
        """What did not end as it should."""
        self.restarted: list[str] = []
        """What an operator had to start again after trouble that did not kill it."""
        self.settings = {"experiment": "soak", "rounds": rounds, "min_clients": 2}
        self.settings |= {"sites": f"{A},{B}"}
        self.submissions = 0
        self.born: dict[str, tuple[int, int]] = {}
        self.readings: list[Reading] = []
        self.run = self.submitted()
        self.rounds = Rounds(self.run.out / "run")

    def submitted(self) -> Run:
        """Once more; it goes on where it was."""
        self.submissions += 1
        return self.federation.submit(self.settings)

    def reach(self, at: int, end: float) -> None:
        """Until so many rounds are done, or that time; a run that ended is submitted again."""
        done, patience = -1, 0.0
        while (now := self.rounds.count()) < at and time.monotonic() < end:
            if now != done:
                done, patience = now, time.monotonic() + LIMIT
            if time.monotonic() > patience:
                self.lost.append(f"no round {now + 1} in {LIMIT:g} s: {self.run.child.tail()}")
                self.kill_server_app()
                done = -1
            self.see_that_it_runs()
            time.sleep(0.3)

    def see_that_it_runs(self) -> None:
        """Submit the run again if it has ended, and start nodes that have, as `deploy node` does:
        one whose requests the link does not believe, by its clock, ends itself."""
        if not self.run.child.alive:
            self.run = self.submitted()
        for name in (A, B):
            if not self.federation.nodes[name].alive:
                self.restarted.append(name)
                lapse(self.federation.project, name)
                self.federation.up(name)

    def bring_about(self, kind: str) -> None:
        """A trouble, and the end of it."""
        happens: dict[str, Callable[[], None]] = {
            "kill, the server app": self.kill_server_app,
            "kill, the link": self.kill_link,
            "kill, a site's node": self.kill_node,
            "term, a site's node": self.term_node,
            "full disk of the server": lambda: self.fill(self.disk("server")),
            "full disk of a site": lambda: self.fill(self.disk("site")),
            "read-only disk of the server": self.read_only,
            "clock": self.set_clock_wrong,
            "memory": self.starve,
        }
        self.see_that_it_runs()  # the trouble before may have come in the same round
        wait_until(lambda: bool(self.federation.find("flwr-serverapp")), LIMIT, pause=0.2)
        happens[kind]()

    def kill_server_app(self) -> None:
        """What runs the rounds, and one that is still ending; the run is submitted again."""
        apps = self.federation.find("flwr-serverapp")
        for app in apps:
            with suppress(psutil.NoSuchProcess):
                app.kill()
        wait_gone(apps)
        self.run.child.end()
        lapse_apps(self.federation.project)

    def kill_link(self) -> None:
        """With it goes the server app."""
        f = self.federation
        server_app = f.find("flwr-serverapp")
        with f.link_lost_and_found(A, B):
            f.link.kill()
            wait_gone(server_app)
            f.link.end()
            lapse_apps(f.project)
            f.start_link(LIMIT)
        self.run.child.end()

    def kill_node(self) -> None:
        """Of one site."""
        f = self.federation
        f.nodes[A].kill()
        f.nodes[A].end()
        lapse(f.project, A)
        f.up(A)

    def term_node(self) -> None:
        """Of the other one."""
        self.federation.down(B)
        self.federation.up(B)

    def disk(self, whose: Literal["server", "site"]) -> Disk:
        """There are some where disks are to have trouble."""
        assert self.disks is not None
        return self.disks.server if whose == "server" else self.disks.site

    def fill(self, disk: Disk) -> None:
        """Until nothing goes on, then give the room back."""
        done, still = self.rounds.count(), time.monotonic() + STILL
        try:
            while time.monotonic() < still and self.run.child.alive:
                disk.fill()  # a process also gives room back, where it drops a checkpoint
                if (now := self.rounds.count()) > done:
                    done, still = now, time.monotonic() + STILL
                time.sleep(0.05)
        finally:
            disk.free()
        self.mend()

    def read_only(self) -> None:
        """The server's disk, for a run that is submitted meanwhile: it ends with a sentence."""
        self.kill_server_app()
        with self.disk("server").read_only():
            self.run = self.submitted()
            with suppress(ChildFailed):
                self.run.child.wait(PATIENCE)
            if "Read-only file system" not in (told := self.run.failure()):
                self.lost.append(f"read-only disk: {told or self.run.child.tail()}")
        if self.run.child.alive:
            self.kill_server_app()

    def set_clock_wrong(self) -> None:
        """For all processes, by up to 30 years; for a while, then it is right again."""
        set_clock(self.chance.choice(JUMPS))
        self.wait_still()
        set_clock(0)
        self.mend()

    def starve(self) -> None:
        """The server app gets no more memory than it has."""
        for process in self.federation.find("flwr-serverapp"):
            now = process.memory_info().vms
            process.rlimit(psutil.RLIMIT_AS, (now, now))
        self.wait_still()
        self.kill_server_app()

    def wait_still(self) -> None:
        """A while, or until the run has ended."""
        end = time.monotonic() + STILL
        while time.monotonic() < end and self.run.child.alive:
            time.sleep(0.2)

    def mend(self) -> None:
        """Do what an operator does: start what has ended, and submit a run again that stands."""
        done = self.rounds.count()
        if not self.federation.link.alive:
            self.restarted.append("link")
            self.federation.up()
        end = time.monotonic() + PATIENCE
        while self.rounds.count() == done and self.run.child.alive and time.monotonic() < end:
            self.see_that_it_runs()
            time.sleep(0.2)
        if self.rounds.count() == done and self.run.child.alive:
            self.restarted.append("a run that stood")
            self.kill_server_app()

    def read(self) -> None:
        """What link and nodes hold now."""
        f, done = self.federation, self.rounds.count()
        for name, child in (("link", f.link), (A, f.nodes[A]), (B, f.nodes[B])):
            born, since = self.born.get(name, (0, 0))
            if born != child.pid:
                self.born[name] = born, since = child.pid, done
            process = psutil.Process(child.pid)
            memory = round(process.memory_info().rss / 2**20, 1)
            reading = Reading(name, since, done - since, memory, process.num_fds())
            self.readings.append(reading)


def planned(args: argparse.Namespace, chance: random.Random) -> list[tuple[int, str]]:
    """So many `kill -9`, SIGTERM a third as often, and of all else so many, at random rounds; the
    last fifth of the run is left alone, to see what grows."""
    kinds = [KILLS[i % len(KILLS)] for i in range(args.kills)] + [TERM] * (args.kills // len(KILLS))
    kinds += OTHERS * args.others
    chance.shuffle(kinds)
    rounds = range(1, max(len(kinds) + 1, args.rounds * 4 // 5))
    return list(zip(sorted(chance.sample(rounds, len(kinds))), kinds, strict=True))


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    chance, begun = random.Random(args.seed), time.monotonic()
    end = begun + 60 * args.minutes
    tried: dict[str, int] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        federation = stack.enter_context(federation_under_test(folder))
        disks = stack.enter_context(Disks.mounted(federation.project)) if args.others else None
        stack.callback(federation.end)  # before the disks go
        for file in (federation.project.site(A), federation.project.site(B)):
            file.write_text(
                with_policy(file.read_text(), f"{PERMISSIVE}\nmost_rounds = {args.rounds}")
            )
        federation.up(A, B)
        one = Soak(federation, args.rounds, disks, chance)

        def go_on(to: int) -> bool:
            while one.rounds.count() < to and time.monotonic() < end:
                one.reach(min(to, one.rounds.count() + BETWEEN), end)
                one.read()
            return time.monotonic() < end

        for number, kind in planned(args, chance):
            if not go_on(number):
                break
            print(f"{time.monotonic() - begun:.0f} s, round {number}: {kind}", flush=True)
            one.bring_about(kind)
            tried[kind] = tried.get(kind, 0) + 1
        if whole := go_on(args.rounds):
            one.run.wait(LIMIT)
        else:
            one.kill_server_app()
        records = federation.records(one.run)
        expected = undisturbed(federation.project, one.run, args.rounds)
        same = {
            "every round once": [r.round for r in records] == list(range(1, len(records) + 1)),
            "journal": without_times(records) == expected.records[: len(records)],
        }
        if whole:
            same["state_sha256"] = federation.sha256(one.run) == expected.sha256
        files = file_sizes(federation.project.root)
    return {
        "rounds": args.rounds,
        "reached": len(records),
        "tried": dict(sorted(tried.items())),
        "lost": one.lost,
        "started_again": one.restarted,
        "same": same,
        "starts": one.submissions,
        "seconds": round(time.monotonic() - begun),
        "grows": grows(one.readings),
        "project": {"files": len(files), "MB": round(sum(files) / 2**20, 1)},
    }


def grows(readings: Sequence[Reading]) -> dict[str, Any]:
    """What link and nodes hold, by the rounds that each has seen since it was last started."""
    found = {}
    for name in ("link", A, B):
        of_process = [r for r in readings if r.process == name]
        last = [r for r in of_process if r.start == of_process[-1].start]
        late = [r for r in last if r.age >= WARM_UP * last[-1].age]
        if len(late) < 2 * FEWEST_BLOCKS:
            continue
        ages = [r.age for r in late]
        found[f"{name}_memory_MB"] = slope(ages, [r.memory_MB for r in late], FEWEST_BLOCKS)
        found[f"{name}_handles"] = slope(ages, [r.handles for r in late], FEWEST_BLOCKS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--others", type=int, default=0, help="times all other kinds of trouble")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="end it after so many")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.others:
        again_with_a_clock(Path(tempfile.gettempdir()) / "soak-clock")
    found = soak(args)
    print(json.dumps(found))
    saved("deployment" if args.kills else "deployment, others", found, args.results)


if __name__ == "__main__":
    main()
