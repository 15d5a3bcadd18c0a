"""A site that gets into trouble at a named round: the `client_app.py` of the tests' projects.

What is to happen lies in `trouble.json` beside the site's configuration, by experiment and round.
Every order of the server is written down in `orders.jsonl`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedloom.deploy.apps import client as honest
from fedloom.deploy.site.config import SiteConfig
from fedloom.engines.flower import codec
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.message_bundle import bundled, opened

MODEL = f"{codec.STATE}model"
LONGEST = 900.0
"""Seconds after which a site that is held goes on by itself."""

app = ClientApp()
app.query()(honest)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do what the server asks, with the trouble of the round."""
    order = codec.read_order(opened(message.content))
    folder = Path(str(context.node_config["site"])).parent
    moment = f"{context.run_config['experiment']} {order.down.plan.t}"
    trouble = "none"
    if order.task == "client":
        with open(folder / "orders.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"moment": moment, "own": order.own}) + "\n")
        trouble = json.loads((folder / "trouble.json").read_text()).get(moment, trouble)
    if trouble == "held before":
        hold(folder, moment)
    reply = honest(message, context)
    if trouble == "held after":  # its new state is saved, and its answer not sent
        hold(folder, moment)
    if trouble in SPOILED:
        reply.content = bundled(SPOILED[trouble](opened(reply.content), context))
    return reply


def hold(folder: Path, moment: str) -> None:
    """Tell the test that the site is in the midst of a round, and wait until it may go on."""
    (folder / f"held {moment}").touch()
    end = time.monotonic() + LONGEST
    while not (folder / f"go {moment}").exists() and time.monotonic() < end:
        time.sleep(0.1)


def not_finite(records: RecordDict, context: Context) -> RecordDict:
    tree = arrays(records)
    key = next(iter(tree))
    return with_arrays(records, {key: Array(torch.full_like(tensor(tree[key]), torch.nan).numpy())})


def other_shape(records: RecordDict, context: Context) -> RecordDict:
    key = next(iter(arrays(records)))
    return with_arrays(records, {key: Array(torch.zeros(3).numpy())})


def unknown_name(records: RecordDict, context: Context) -> RecordDict:
    return with_arrays(records, {"extra": Array(torch.zeros(1).numpy())})


def personal(records: RecordDict, context: Context) -> RecordDict:
    """What the site has just saved for itself is sent along."""
    site = SiteConfig.read(Path(str(context.node_config["site"])))
    store = SiteStore(site.state / str(context.run_config["experiment"]) / "states")
    own = store.get(str(records.config_records["head"]["own"])) or {}
    return with_arrays(records, {key: Array(v.numpy()) for key, v in own["model"].items()})


def arrays(records: RecordDict) -> dict[str, Array]:
    return dict(records.array_records[MODEL])


def tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.numpy())


def with_arrays(records: RecordDict, changed: dict[str, Array]) -> RecordDict:
    records[MODEL] = ArrayRecord({**arrays(records), **changed})
    return records


SPOILED: dict[str, Callable[[RecordDict, Context], RecordDict]] = {
    "nan": not_finite,
    "shape": other_shape,
    "name": unknown_name,
    "personal": personal,
}
