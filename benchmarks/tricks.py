"""What makes local training faster here and what does not: every trick against doing without.

    python benchmarks/tricks.py            all (about five minutes)
    python benchmarks/tricks.py threads    one

Both ways take turns in one process; the speed-up is the median of the ratios of neighbours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.data import Source, federate, load
from fedloom.engines import bundle, make_engine
from fedloom.engines.pipe_codec import receive, send
from fedloom.engines.pool import Pool
from fedloom.files import write_json
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "tricks.json"
STEPS, REPEATS = 60, 7

Way = Callable[[], object]
Trick = Callable[[], tuple[Way, Way]]
TRICKS: dict[str, tuple[str, Trick]] = {}


def trick(name: str, what: str, *arguments: object) -> Callable[[Callable], Callable]:
    """Register a function that returns (without, with)."""

    def register(make: Callable) -> Callable:
        TRICKS[name] = (what, partial(make, *arguments))
        return make

    return register


def cnn() -> nn.Sequential:
    """The 4-layer CNN on grey images of 28 x 28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def mlp() -> nn.Sequential:
    """A small dense network on 8 x 8 digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batches(model: nn.Module, batch: int) -> tuple[Tensor, Tensor]:
    """Random inputs and labels for `STEPS` batches."""
    shape = (1, 28, 28) if any(isinstance(m, nn.Conv2d) for m in model) else (1, 8, 8)
    gen = torch.Generator().manual_seed(0)
    x = torch.rand(STEPS * batch, *shape, generator=gen)
    return x, torch.randint(10, (STEPS * batch,), generator=gen)


def train(
    model: nn.Module, x: Tensor, y: Tensor, batch: int, step: Callable[[Tensor], None]
) -> None:
    """Steps over all batches."""
    for xb, yb in zip(x.split(batch), y.split(batch), strict=True):
        step(F.cross_entropy(model(xb), yb))


def plain_step(model: nn.Module) -> Callable[[Tensor], None]:
    """A gradient step as fedloom takes it."""
    parameters = list(model.parameters())

    def step(loss: Tensor) -> None:
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g in zip(parameters, grads, strict=True):
                p.add_(g, alpha=-0.01)

    return step


@trick("channels_last_10", "images channels last, CNN, batch 10", 10)
@trick("channels_last_50", "images channels last, CNN, batch 50", 50)
def channels_last(batch: int) -> tuple[Way, Way]:
    plain, last = cnn(), cnn().to(memory_format=torch.channels_last)
    x, y = batches(plain, batch)
    x_last = x.contiguous(memory_format=torch.channels_last)
    return (
        partial(train, plain, x, y, batch, plain_step(plain)),
        partial(train, last, x_last, y, batch, plain_step(last)),
    )


@trick("optimiser_cnn", "torch.optim.SGD instead of our loop, CNN", cnn, {})
@trick("optimiser_mlp", "torch.optim.SGD instead of our loop, MLP", mlp, {})
@trick("foreach_mlp", "torch.optim.SGD with foreach, MLP", mlp, {"foreach": True})
@trick("fused_cnn", "torch.optim.SGD with fused, CNN", cnn, {"fused": True})
@trick("fused_mlp", "torch.optim.SGD with fused, MLP", mlp, {"fused": True})
@trick("buffers_mlp", "gradient buffers kept and zeroed, MLP", mlp, {"set_to_none": False})
def optimiser(make: Callable[[], nn.Module], how: dict) -> tuple[Way, Way]:
    model = make()
    x, y = batches(model, 10)
    keep = "set_to_none" in how
    made = torch.optim.SGD(model.parameters(), lr=0.01, **({} if keep else how))

    def step(loss: Tensor) -> None:
        made.zero_grad(set_to_none=not keep)
        loss.backward()
        made.step()

    return (
        partial(train, model, x, y, 10, plain_step(model)),
        partial(train, model, x, y, 10, step),
    )


@trick("gather_cnn", "rows fetched once per epoch, CNN", cnn)
@trick("gather_mlp", "rows fetched once per epoch, MLP", mlp)
def gather(make: Callable[[], nn.Module]) -> tuple[Way, Way]:
    model = make()
    x, y = batches(model, 10)
    pixels, order = (x * 255).byte(), torch.randperm(len(x))
    step = plain_step(model)

    def fetch(rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.mul(pixels.index_select(0, rows), 1 / 255).add_(-0.5), y[rows]

    def each() -> None:
        for rows in order.split(10):
            xb, yb = fetch(rows)
            step(F.cross_entropy(model(xb), yb))

    def once() -> None:
        train(model, *fetch(order), 10, step)

    return each, once


@trick("compile_cnn", "torch.compile, CNN (compilation not counted)", cnn)
@trick("compile_mlp", "torch.compile, MLP (compilation not counted)", mlp)
def compiled(make: Callable[[], nn.Module]) -> tuple[Way, Way]:
    model = make()
    x, y = batches(model, 10)
    fast = torch.compile(model)
    step = plain_step(model)
    return partial(train, model, x, y, 10, step), partial(train, fast, x, y, 10, step)


@trick("threads", "two threads in one process, CNN, nothing else running", cnn)
def threads(make: Callable[[], nn.Module]) -> tuple[Way, Way]:
    model = make()
    x, y = batches(model, 10)

    def run(count: int) -> None:
        torch.set_num_threads(count)
        train(model, x, y, 10, plain_step(model))
        torch.set_num_threads(1)

    return partial(run, 1), partial(run, 2)


@trick("vmap_cnn", "vmap over 16 clients, CNN", cnn)
@trick("vmap_mlp", "vmap over 16 clients, MLP", mlp)
def vmap(make: Callable[[], nn.Module]) -> tuple[Way, Way]:
    model, clients = make(), 16
    x, y = (v.split(len(v) // 6)[0] for v in batches(model, 10))  # ten steps each
    step = plain_step(model)
    names = [k for k, _ in model.named_parameters()]

    def loss(values: tuple[Tensor, ...], xb: Tensor, yb: Tensor) -> Tensor:
        out = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (xb,))
        return F.cross_entropy(out, yb)

    grads = torch.func.vmap(torch.func.grad(loss))

    def one_by_one() -> None:
        for _ in range(clients):
            train(model, x, y, 10, step)

    def together() -> None:
        values = tuple(p.detach().expand(clients, *p.shape).clone() for p in model.parameters())
        for xb, yb in zip(x.split(10), y.split(10), strict=True):
            found = grads(
                values,
                xb.expand(clients, *xb.shape).contiguous(),
                yb.expand(clients, len(yb)).contiguous(),
            )
            for v, g in zip(values, found, strict=True):
                v.add_(g, alpha=-0.01)

    return one_by_one, together


@trick("scan", "evaluation in batches of 512 instead of 32, CNN", 32, 512)
@trick("scan_more", "evaluation in batches of 2048 instead of 512, CNN", 512, 2048)
def scan(small: int, large: int) -> tuple[Way, Way]:
    model = cnn().to(memory_format=torch.channels_last).eval()
    x = torch.rand(2048, 1, 28, 28)

    @torch.no_grad()
    def run(batch: int) -> None:
        for xb in x.split(batch):
            model(xb)

    return partial(run, small), partial(run, large)


def _echo(link: object, memory: Tensor) -> None:
    """Takes weights as they come: through the pipe, or copied from shared memory."""
    torch.set_num_threads(1)
    while (said := link.recv()) is not None:  # type: ignore[attr-defined]
        link.send(len(receive(link)) if said == "pipe" else float(memory.clone()[0]))  # type: ignore


@trick("shared_memory", "a CNN's weights (2.3 MB) in shared memory instead of through a pipe")
def shared_memory() -> tuple[Way, Way]:
    weights = {k: v.detach() for k, v in cnn().named_parameters()}
    memory = torch.zeros(sum(v.numel() for v in weights.values())).share_memory_()
    ours, theirs = get_context("fork").Pipe()
    process = get_context("fork").Process(target=_echo, args=(theirs, memory), daemon=True)
    process.start()

    def piped() -> None:
        ours.send("pipe")
        send(ours, None, [{"model": weights}])
        ours.recv()

    def shared() -> None:
        memory.copy_(torch.cat([v.reshape(-1) for v in weights.values()]))
        ours.send("shared")
        ours.recv()

    return piped, shared


def tiny_clients(clients: int, **settings: object) -> Experiment:
    """Digits-sized clients of 18 training rows."""
    digits, rows = load("digits"), clients * 24
    copies = rows // len(digits) + 1
    x = np.tile(np.asarray(digits.x), (copies, 1, 1, 1))[:rows]
    source = Source.from_arrays(x, np.tile(np.asarray(digits.y), copies)[:rows], name="tiny")
    config = RunConfig.checked({"rounds": 2, "eval_every": 2, "protocol": "dbe", **settings})
    return Experiment.build(config, data=federate(source, "iid", clients))


@trick("bundles", "64 small clients per message instead of one, pool of two")
def bundles() -> tuple[Way, Way]:
    experiment, pool = tiny_clients(100), Pool(2)

    def run(most: int) -> None:
        bundle.MOST_CLIENTS = most
        start(experiment, pool)

    return partial(run, 1), partial(run, 64)


@trick("blocks", "the vectorized engine instead of inline, 200 digits-sized clients")
def blocks() -> tuple[Way, Way]:
    experiment = tiny_clients(200)
    return (
        partial(start, experiment, make_engine("inline")),
        partial(start, experiment, make_engine("vectorized")),
    )


@trick("longest_first", "longest client first instead of by id (computed from Dir(0.1) sizes)")
def longest_first() -> tuple[Way, Way]:
    config = RunConfig(data="digits", partition="dirichlet(alpha=0.1)", clients=20)
    data = Experiment.build(config).data
    sizes = {cid: data.size(cid) for cid in range(len(data))}

    def makespan(order: list[int]) -> float:
        busy = [0, 0]
        for cid in order:
            busy[busy.index(min(busy))] += sizes[cid]
        return max(busy) / 2e5

    by_length = sorted(sizes, key=lambda cid: -sizes[cid])
    return partial(_sleep, makespan(list(sizes))), partial(_sleep, makespan(by_length))


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def measure(make: Trick) -> dict:
    """Ratios of neighbouring runs: above one, the trick helps."""
    without, with_it = make()
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for way in (without, with_it):
        way()  # warm
    for i in range(REPEATS):
        for name, way in (("without", without), ("with", with_it))[:: 1 if i % 2 == 0 else -1]:
            begun = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - begun)
    ratios = [a / b for a, b in zip(seconds["without"], seconds["with"], strict=True)]
    return {
        "speed_up": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        **{f"{name}_ms": round(1e3 * median(found), 3) for name, found in seconds.items()},
    }


def main() -> None:
    """Measure what was asked for, keep what was measured before."""
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or list(TRICKS)
    if unknown := sorted(set(wanted) - set(TRICKS)):
        raise SystemExit(f"there is no trick {unknown[0]!r}; choose from {', '.join(TRICKS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found = results.get("tricks", {})
    for name in wanted:
        what, make = TRICKS[name]
        found[name] = {"what": what, **measure(make)}
        low, high = found[name]["spread"]
        print(f"{what}: {found[name]['speed_up']:.2f} ({low:.2f} to {high:.2f})", flush=True)
        results["tricks"] = {k: found[k] for k in TRICKS if k in found}
        write_json(RESULTS, results | {"cores": os.cpu_count(), "versions": current_versions()})


if __name__ == "__main__":
    main()
