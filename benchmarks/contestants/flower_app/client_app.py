"""What one Flower client does: the hand-written loop of `bare.py` inside Flower's messages; or,
with `plain`, what Flower's tutorial does: a new network and a DataLoader for every message.

In a module of its own because Ray sends functions of a script by value with every call, and a
cache would then be lost; functions of a module are sent by name and the data is read only once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from work import Work, accuracy, network

app = ClientApp()


@cache
def held(folder: str) -> tuple[Work, nn.Module]:
    """Data and network of this process, one thread as everywhere in the benchmark."""
    torch.set_num_threads(1)
    work = Work.read(Path(folder))
    return work, network(work.settings).to(memory_format=torch.channels_last)


class Images(Dataset):
    """One client's rows, normalised one by one as a DataLoader asks for them."""

    def __init__(self, work: Work, rows: Tensor) -> None:
        self.work, self.rows = work, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        work, row = self.work, self.rows[i]
        return work.x[row] * work.settings["scale"] + work.settings["offset"], work.y[row]


def fit_plain(msg: Message, work: Work, cid: int) -> tuple[nn.Module, int]:
    """The tutorial's way: the trained network and the number of steps taken."""
    model, steps = network(work.settings), 0
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = DataLoader(
        Images(work, work.train[cid]), batch_size=work.settings["batch"], shuffle=True
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=work.settings["lr"])
    for x, y in loader:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
        steps += 1
    return model, steps


def received(msg: Message, context: Context) -> tuple[Work, nn.Module, int]:
    """The data, the network with the weights of a message, and which client this is."""
    work, model = held(str(msg.content["config"]["work"]))
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return work, model, int(context.node_config["partition-id"])


def fit(model: nn.Module, work: Work, t: int, cid: int) -> int:
    """One client's local epochs; the number of steps taken."""
    rows, steps = work.train[cid], 0
    optimiser = torch.optim.SGD(model.parameters(), lr=work.settings["lr"])
    for order in work.orders[t, cid]:
        for idx in order.split(work.settings["batch"]):
            batch = rows[idx]
            loss = F.cross_entropy(model(work.inputs(batch)), work.y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps += 1
    return steps


@app.query()
def warm(msg: Message, context: Context) -> Message:
    """Load everything and use it once, before the clock runs."""
    work, model = held(str(msg.content["config"]["work"]))
    accuracy(model, work, work.test[0])
    torch.optim.SGD(model.parameters()).zero_grad()  # the first one imports torch's compiler
    return Message(RecordDict(), reply_to=msg)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train on this client's rows and send the weights back."""
    work, model, cid = received(msg, context)
    if msg.content["config"]["plain"]:
        model, steps = fit_plain(msg, work, cid)
    else:
        steps = fit(model, work, int(msg.content["config"]["server-round"]) - 1, cid)
    metrics = MetricRecord({"num-examples": len(work.train[cid]), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the global model on this client's rows."""
    work, model, cid = received(msg, context)
    score = accuracy(model, work, work.test[cid])
    metrics = MetricRecord({"num-examples": len(work.test[cid]), "accuracy": score})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
