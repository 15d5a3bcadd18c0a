"""FedPAC's local work by hand, in as many processes: what its clients compute and nothing else.

Statistics of the received body, an epoch on the head, epochs on the body with features drawn to
class centroids, centroids of the trained body. The server here only averages: the time of the
quadratic programs is what fedloom has on top.
"""

from __future__ import annotations

import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from crew import Crew, unflatten
from torch import Tensor, nn
from work import Work, arguments, load, network, report

HEAD_RATE, PULL = 0.1, 1.0


@torch.no_grad()
def features(body: nn.Module, work: Work, rows: Tensor) -> Tensor:
    """Features of all rows of a client."""
    body.eval()
    found = torch.cat([body(work.inputs(part)) for part in rows.split(512)])
    body.train()
    return found


def centroids(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Class means and counts."""
    member = F.one_hot(y, 10).to(z.dtype)
    counts = member.sum(0)
    return member.T @ z / counts.clamp_min(1)[:, None], counts


def train(model: nn.Sequential, work: Work, t: int, cid: int, given: Tensor) -> tuple:
    """One client: (class sums over n, variance, centroids, counts)."""
    body, head = model
    rows, size, rate = work.train[cid], work.settings["batch"], work.settings["lr"]
    z, y = features(body, work, rows), work.y[rows]
    means, counts = centroids(z.double(), y)
    h = means * (counts / len(y))[:, None]
    variance = (z.double() ** 2).sum(1).mean() - (h**2).sum()
    known = given.abs().sum(1) > 0
    targets = torch.where(known[:, None], given, means.float())
    optimiser = torch.optim.SGD(head.parameters(), lr=HEAD_RATE)
    orders = work.orders[t, cid]
    for idx in orders[0].split(size):  # the body is frozen: its features are known already
        loss = F.cross_entropy(head(z[idx]), y[idx])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    optimiser = torch.optim.SGD(body.parameters(), lr=rate)
    head.requires_grad_(False)
    for order in orders:
        for idx in order.split(size):
            batch = rows[idx]
            z = body(work.inputs(batch))
            loss = F.cross_entropy(head(z), work.y[batch])
            if known.any():
                loss = loss + PULL * F.mse_loss(z, targets[work.y[batch]])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    head.requires_grad_(True)
    return h, variance, *centroids(features(body, work, rows), y)


def worker(folder, shared: Tensor, results: Tensor, jobs: mp.Queue, done: mp.Queue) -> None:
    """Trains clients until it is told to end."""
    torch.set_num_threads(1)
    work = Work.read(folder)
    model = network(work.settings).to(memory_format=torch.channels_last)
    while (job := jobs.get()) is not None:
        t, cid, given = job
        load(model, unflatten(shared, work))
        if cid is None:
            done.put(None)
            continue
        found = train(model, work, t, cid, torch.tensor(given))
        with torch.no_grad():
            results[cid] = torch.cat([p.reshape(-1) for p in model.parameters()])
        done.put((cid, *(v.tolist() for v in found)))


def main() -> None:
    """All rounds, timed one by one."""
    args = arguments()
    torch.set_num_threads(1)
    work = Work.read(args.work)
    sizes = [float(len(rows)) for rows in work.train]
    crew = Crew(worker, args.work, work, args.workers, warm_up=(0, None, []))
    given = torch.zeros(10, 128)
    seconds = []
    for t, cohort in enumerate(work.cohorts):
        begun = time.perf_counter()
        for cid in sorted(cohort, key=lambda i: -sizes[i]):
            crew.jobs.put((t, cid, given.tolist()))
        found = [crew.done.get() for _ in cohort]
        crew.average(cohort, sizes)
        means = torch.tensor([f[3] for f in found])
        counts = torch.tensor([f[4] for f in found])
        given = (means * counts[..., None]).sum(0) / counts.sum(0).clamp_min(1)[:, None]
        seconds.append(time.perf_counter() - begun)
    crew.end()
    report(seconds, unflatten(crew.shared, work))


if __name__ == "__main__":
    main()
