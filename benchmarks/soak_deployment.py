"""A deployment whose processes are killed in turn, beside the same run in one process.

    python benchmarks/soak_deployment.py --rounds 15 --kills 6

Two sites and a link with TLS and keys, as real processes on loopback (those of the tests, see
`tests/deploy/trouble.py`). At random rounds `kill -9` hits the server app, the link or a site's
node, and SIGTERM a node; what was killed is started again, and the run is submitted again where it
ended. A round needs both sites, so the bytes have to be those of a run in which nothing happened.
A round takes seconds here, so they are few; results go beside the others, in
`benchmarks/results/soak.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "deploy"), str(HERE.parent / "tests")]

from soak import RESULTS, saved  # noqa: E402
from trouble import (  # noqa: E402
    A,
    B,
    FederationUnderTest,
    federation_under_test,
    lapse,
    undisturbed,
    wait_gone,
    without_times,
)

from fedloom.deploy.processes.federation import Run  # noqa: E402
from helpers import LIMIT  # noqa: E402

KINDS = ["kill, the server app", "kill, a site's node", "kill, the link", "term, a site's node"]


class Soak:
    """One run."""

    def __init__(self, federation: FederationUnderTest, rounds: int) -> None:
        self.federation = federation
        self.settings = {"experiment": "soak", "rounds": rounds, "min_clients": 2}
        self.settings |= {"sites": f"{A},{B}"}
        self.submissions = 0
        self.run = self.submitted()

    def submitted(self) -> Run:
        """Once more; it goes on where it was."""
        self.submissions += 1
        return self.federation.submit(self.settings)

    def reach(self, at: int) -> None:
        """Until so many rounds are done; a run that ended on the way is submitted again."""
        end = time.monotonic() + LIMIT
        while len(self.federation.records(self.run)) < at:
            if time.monotonic() > end:
                raise SystemExit(f"no round {at} in {LIMIT:g} s: {self.run.child.tail()}")
            if not self.run.child.alive:
                self.run = self.submitted()
            time.sleep(0.2)

    def bring_about(self, kind: str) -> None:
        """A trouble, and the end of it."""
        f = self.federation
        if kind == "kill, the server app":
            f.kill("flwr-serverapp")
            self.run.child.end()
        elif kind == "kill, the link":
            server_app = f.find("flwr-serverapp")
            with f.link_lost_and_found(A, B):
                f.link.kill()
                wait_gone(server_app)
                f.link.end()
                f.start_link(LIMIT)
            self.run.child.end()
        elif kind == "kill, a site's node":
            f.nodes[A].kill()
            f.nodes[A].end()
            lapse(f.project, A)
            f.up(A)
        else:
            f.down(B)
            f.up(B)

    def handles_and_memory(self) -> dict[str, float]:
        """Of the processes that are there all the while."""
        found = {"handles": 0.0, "memory_MB": 0.0}
        for child in (self.federation.link, self.federation.nodes[A], self.federation.nodes[B]):
            process = psutil.Process(child.pid)
            found["handles"] += process.num_fds()
            found["memory_MB"] += round(process.memory_info().rss / 2**20, 1)
        return found


def soak(rounds: int, kills: int, seed: int) -> dict[str, Any]:
    """All of it."""
    rng, begun = random.Random(seed), time.monotonic()
    kinds = (KINDS * kills)[: max(kills, len(KINDS))]
    at = sorted(rng.randint(1, rounds - 2) for _ in kinds)
    tried: dict[str, int] = {}
    scratch = tempfile.TemporaryDirectory(prefix="soak-")
    with scratch as folder, federation_under_test(Path(folder)) as federation:
        federation.up(A, B)
        one = Soak(federation, rounds)
        one.reach(1)
        first = one.handles_and_memory()
        for number, kind in zip(at, kinds, strict=True):
            one.reach(number)
            print(f"{time.monotonic() - begun:.0f} s, round {number}: {kind}", flush=True)
            one.bring_about(kind)
            tried[kind] = tried.get(kind, 0) + 1
        one.reach(rounds)
        one.run.wait(LIMIT)
        records, last = federation.records(one.run), one.handles_and_memory()
        expected = undisturbed(federation.project, one.run, rounds)
        same = {
            "every round once": [r.round for r in records] == list(range(1, rounds + 1)),
            "journal": without_times(records) == expected.records,
            "state_sha256": federation.sha256(one.run) == expected.sha256,
        }
    return {
        "rounds": rounds,
        "tried": tried,
        "lost": [],
        "same": same,
        "starts": one.submissions,
        "seconds": round(time.monotonic() - begun),
        "link_and_nodes": {"after the first round": first, "at the end": last},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = soak(args.rounds, args.kills, args.seed)
    print(json.dumps(found, indent=1))
    saved("deployment", found, args.results)


if __name__ == "__main__":
    main()
