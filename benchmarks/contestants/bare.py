"""FedAvg by hand: a loop over the same batches in as many processes, and no framework at all.

Weights cross in shared memory, the longest client is trained first, one thread per process.
"""

from __future__ import annotations

import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor
from work import Work, accuracy, arguments, load, network, report


def train(model: torch.nn.Module, work: Work, t: int, cid: int) -> None:
    """One client's local epochs."""
    rows, size = work.train[cid], work.settings["batch"]
    optimiser = torch.optim.SGD(model.parameters(), lr=work.settings["lr"])
    for order in work.orders[t, cid]:
        for idx in order.split(size):
            batch = rows[idx]
            loss = F.cross_entropy(model(work.inputs(batch)), work.y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def worker(folder, shared: Tensor, results: Tensor, jobs: mp.Queue, done: mp.Queue) -> None:
    """Trains and tests clients until it is told to end."""
    torch.set_num_threads(1)
    work = Work.read(folder)
    model = network(work.settings).to(memory_format=torch.channels_last)
    while (job := jobs.get()) is not None:
        task, t, cid = job
        load(model, unflatten(shared, work))
        if task == "train":
            train(model, work, t, cid)
            with torch.no_grad():
                results[cid] = torch.cat([p.reshape(-1) for p in model.parameters()])
            done.put(cid)
        else:
            done.put(accuracy(model, work, work.test[cid]))


def unflatten(flat: Tensor, work: Work) -> list[Tensor]:
    """Tensors cut from one long vector."""
    shapes = [v.shape for v in work.initial.values()]
    parts = flat.split([s.numel() for s in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def main() -> None:
    """All rounds, timed one by one."""
    args = arguments()
    torch.set_num_threads(1)
    work = Work.read(args.work)
    sizes = torch.tensor([len(rows) for rows in work.train], dtype=torch.float64)
    shared = torch.cat([v.reshape(-1) for v in work.initial.values()]).share_memory_()
    results = torch.zeros(len(sizes), len(shared)).share_memory_()
    context = mp.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    state = (args.work, shared, results, jobs, done)
    workers = [context.Process(target=worker, args=state) for _ in range(args.workers)]
    for process in workers:
        process.start()
    for _ in workers:  # started and loaded, before the clock runs
        jobs.put(("test", 0, 0))
    for _ in workers:
        done.get()
    seconds, scores = [], []
    for t, cohort in enumerate(work.cohorts):
        begun = time.perf_counter()
        for cid in sorted(cohort, key=lambda i: -len(work.train[i])):
            jobs.put(("train", t, cid))
        for _ in cohort:
            done.get()
        total = torch.zeros(len(shared), dtype=torch.float64)
        for cid in sorted(cohort):
            total.add_(results[cid].double(), alpha=float(sizes[cid]))
        shared.copy_(total / sizes[sorted(cohort)].sum())
        if args.evaluate:
            for cid in range(len(sizes)):
                jobs.put(("test", t, cid))
            scores = [done.get() for _ in range(len(sizes))]
        seconds.append(time.perf_counter() - begun)
    for _ in workers:
        jobs.put(None)
    for process in workers:
        process.join()
    # Channels last is how the convolutions lie in memory here; the digest is of plain weights.
    report(seconds, unflatten(shared, work), accuracy=sum(scores) / len(scores) if scores else None)


if __name__ == "__main__":
    main()
