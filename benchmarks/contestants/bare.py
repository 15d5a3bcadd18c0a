"""FedAvg by hand: a loop over the same batches in as many processes, and no framework at all.

Weights cross in shared memory, the longest client is trained first, one thread per process.
"""

from __future__ import annotations

import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from crew import Crew, unflatten
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


def main() -> None:
    """All rounds, timed one by one."""
    args = arguments()
    torch.set_num_threads(1)
    work = Work.read(args.work)
    sizes = [float(len(rows)) for rows in work.train]
    crew = Crew(worker, args.work, work, args.workers, warm_up=("test", 0, 0))
    seconds, scores = [], []
    for t, cohort in enumerate(work.cohorts):
        begun = time.perf_counter()
        for cid in sorted(cohort, key=lambda i: -sizes[i]):
            crew.jobs.put(("train", t, cid))
        for _ in cohort:
            crew.done.get()
        crew.average(cohort, sizes)
        if args.evaluate:
            for cid in range(len(sizes)):
                crew.jobs.put(("test", t, cid))
            scores = [crew.done.get() for _ in range(len(sizes))]
        seconds.append(time.perf_counter() - begun)
    crew.end()
    mean = sum(scores) / len(scores) if scores else None
    report(seconds, unflatten(crew.shared, work), accuracy=mean)


if __name__ == "__main__":
    main()
