"""What secure aggregation costs, and what it changes.

    python benchmarks/secure.py     what is not in results/secure.json yet; about two minutes

Runs are on digits by Dirichlet(0.3), one seed, in one process: seconds are of all clients and the
server one after the other. A deployment has the clients' share at the clients. They are of
processor time, so that what else a machine does changes little.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.common.secure_aggregation.crypto import shamir as flowers

import fedloom as fl
from fedloom.core.secure import shamir
from fedloom.core.secure.keys import mask
from fedloom.core.secure.slices import SECURE
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "secure.json"
SIZES = (5, 20, 50)
METHODS = {
    "DBE": "fedavg + dbe",
    "FedProto": "fedproto",
    "FedRep": "fedrep",
    "DualFed": "dualfed(lr=0.01)",  # as in its paper; at 0.05 it does not learn here
    "DualFed without BatchNorm": "dualfed(lr=0.01, batch_norm=false)",
    "FedCR": "fedcr",
}
NUMBERS = 1_000_000
AFTER_ONE = "largest difference after one round"


def settings(clients: int, rounds: int) -> dict[str, Any]:
    """Of a run with so many clients, all of them in every round."""
    return {
        "data": "digits",
        "clients": clients,
        "partition": "dirichlet(alpha=0.3)",
        "rounds": rounds,
        "eval_every": rounds,
        "steps": 5,
        "progress": False,
    }


def compared(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """A run as it is, and masked."""
    runs, seconds = [], []
    for secure in (None, "pairwise"):
        begun = time.process_time()
        runs.append(fl.run(method, **settings(clients, rounds), secure_aggregation=secure))
        seconds.append(time.process_time() - begun)
    plain, masked = runs
    per_message = clients * rounds
    return {
        "clients": clients,
        "rounds": rounds,
        "numbers": sum(value.numel() for tree in plain.server.values() for value in tree.values()),
        "accuracy": [round(run.accuracy, 4) for run in (plain, masked)],
        "largest difference at the server": difference(plain, masked),
        "clipped": sum(record.notes.get(SECURE, {}).get("clipped", 0) for record in masked.records),
        "bytes up per client and round": [
            round(run.summary.bytes_up / per_message) for run in (plain, masked)
        ],
        "bytes down per client and round": [
            round(run.summary.bytes_down / per_message) for run in (plain, masked)
        ],
        "more seconds per round": round((seconds[1] - seconds[0]) / rounds, 3),
    }


def difference(plain: fl.Result, masked: fl.Result) -> float:
    """The largest of any number that both servers hold."""
    return max(
        float((value.double() - masked.server[slice_][key].double()).abs().max())
        for slice_, tree in plain.server.items()
        for key, value in tree.items()
    )


def after_one_round(method: str, clients: int) -> float:
    """The largest difference before any client has trained from what masks rounded."""
    pair = (
        fl.run(method, **settings(clients, 1), secure_aggregation=secure)
        for secure in (None, "pairwise")
    )
    return difference(*pair)


def shares(members: int) -> dict[str, float]:
    """Seconds for the shares of all secrets of a round, and for taking them together: ours, and
    Flower's for one secret times the number of them."""
    needed, secret, points = round(0.6 * members), os.urandom(32), list(range(1, members + 1))
    held = dict(zip(points, shamir.shares(secret, needed, points, secret), strict=True))
    enough = {x: held[x] for x in points[:needed]}
    tokens = flowers.create_shares(secret, needed, members)

    def ours() -> None:
        at_zero = shamir.factors(enough)
        for _ in range(members):
            shamir.secret_of(enough, at_zero)

    made = timed(lambda: [shamir.shares(secret, needed, points, secret) for _ in range(members)])
    return {
        "made": made,
        "taken together": timed(ours),
        "made by Flower": members * timed(lambda: flowers.create_shares(secret, needed, members)),
        "taken together by Flower": members
        * timed(lambda: flowers.combine_shares(tokens[:needed])),
    }


def timed(what: Callable[[], object]) -> float:
    """Seconds of processor time that it takes, the quickest of two times."""
    seconds = []
    for _ in range(2):
        begun = time.process_time()
        what()
        seconds.append(time.process_time() - begun)
    return round(min(seconds), 5)


def main() -> None:
    torch.set_num_threads(1)
    measured = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    fl.run("fedavg", **settings(5, 1), secure_aggregation="pairwise")  # what is imported once
    parts: dict[str, Callable[[], object]] = {
        "seconds per mask of a million numbers": lambda: timed(lambda: mask(bytes(32), NUMBERS)),
        **{f"FedAvg, {n} clients": partial(compared, "fedavg", n, 2) for n in SIZES},
        **{f"shares of {n} clients": partial(shares, n) for n in SIZES},
        **{f"{title}, 10 clients": partial(compared, of, 10, 3) for title, of in METHODS.items()},
    }
    for name, measure in parts.items():
        if name not in measured:
            measured[name] = measure()
            write_json(RESULTS, {**measured, "versions": current_versions()})
    runs = {f"FedAvg, {n} clients": ("fedavg", n) for n in SIZES}
    runs |= {f"{title}, 10 clients": (of, 10) for title, of in METHODS.items()}
    for name, run in runs.items():
        if AFTER_ONE not in measured[name]:
            measured[name][AFTER_ONE] = after_one_round(*run)
            write_json(RESULTS, {**measured, "versions": current_versions()})


if __name__ == "__main__":
    main()
