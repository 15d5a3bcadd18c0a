"""What a server that lies about the model can read: one exact row in a round, through the gate.

    PYTHONPATH=tests:tests/deploy python attacks/crafted_weights.py

Honest app, default policy, an approved FedAvg run of a linear model with batches of 16; the site
lacks one class, as sites may. The server sends weights under which that class is predicted for rows
beyond a plane, and for no others. No row of the site has that class, so the change of its weights
is the sum of the rows beyond the plane, and the change of its bias says how many they are. The
plane is moved until it is one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from gated_site import GatedSite, gated_site

from fedloom.data import load
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.client import SiteData
from fedloom.engines.flower import codec

MODEL = f"{codec.STATE}model"
ABSENT = 9
STEEP = 200.0
RUN = {"method": "fedavg", "model": "mlp(hidden=[])", "lr": 0.05, "rounds": 100}


def order(site: GatedSite, t: int, direction: np.ndarray, threshold: float) -> RecordDict:
    """A round's order with the server's own weights."""
    records = site.order(t=t)
    weight = np.zeros((10, direction.size), np.float32)
    bias = np.zeros(10, np.float32)
    weight[ABSENT], bias[ABSENT] = STEEP * direction, -STEEP * threshold
    tree = dict(records.array_records[MODEL])
    (bias_key,) = [key for key in tree if key.endswith("bias")]
    (weight_key,) = [key for key in tree if key.endswith("weight")]
    records[MODEL] = ArrayRecord({**tree, weight_key: Array(weight), bias_key: Array(bias)})
    return records


def answer(
    site: GatedSite, t: int, direction: np.ndarray, threshold: float
) -> tuple[np.ndarray, float]:
    """Sum of the rows beyond the plane, and how many they are."""
    sent = order(site, t, direction, threshold)
    left = site.ask(sent, override=RUN)
    assert not left.error, left.error
    before, after = dict(sent.array_records[MODEL]), dict(left.reply.content.array_records[MODEL])
    change = {key: after[key].numpy() - before[key].numpy() for key in after}
    (bias,) = [value for key, value in change.items() if key.endswith("bias")]
    (weight,) = [value for key, value in change.items() if key.endswith("weight")]
    scale = -16 / 0.05
    return scale * weight[ABSENT], float(scale * bias[ABSENT])


def read_row(site: GatedSite, seed: int, t: int) -> tuple[np.ndarray, int]:
    """A row, and the rounds that it took."""
    rng = np.random.default_rng(seed)
    direction = np.zeros(64, np.float32)
    direction[rng.choice(np.arange(10, 54), 8, replace=False)] = rng.choice([-1.0, 1.0], 8)
    low, high = -20.0, 20.0
    for rounds in range(1, 30):
        threshold = (low + high) / 2
        total, count = answer(site, t + rounds, direction, threshold)
        if 0.9 < count < 1.1:
            return total / count, rounds
        low, high = (threshold, high) if count > 1 else (low, threshold)
    return total, -1


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, gated_site(Path(scratch)) as site:
        source = load("digits")
        kept = np.flatnonzero(np.asarray(source.y) != ABSENT)[:600]
        np.savez(
            site.file.parent / "data.npz",
            x=np.asarray(source.x)[kept],
            y=np.asarray(source.y)[kept],
        )
        digest = site.approve(**RUN)
        settings = Settings.read(site.configuration(**RUN))
        vars(site)["site"] = SiteData(site.desk.site, settings)  # orders are of this run
        print("approved by the default policy:", digest[:12])
        train = site.site.divided.client(0).train
        rows = train.x(torch.arange(len(train))).flatten(1).numpy()
        t = 0
        for seed in range(3):
            row, rounds = read_row(site, seed, t)
            t += rounds
            distance = np.linalg.norm(rows - row, axis=1) / np.linalg.norm(rows, axis=1)
            print(f"round {t}: row {distance.argmin()} to {distance.min():.1e}")
        print("the gate's record:", site.events()[-2:], "refused:", site.rules())


if __name__ == "__main__":
    main()
