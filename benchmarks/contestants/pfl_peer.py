"""FedAvg on Apple's pfl: its algorithm, simulated backend, datasets and weighting on PyTorch.

With two workers pfl runs as two processes of one thread that share the cohort and sum over gloo,
as its guide proposes. `--workers 1` is one process; `OMP_NUM_THREADS` sets the threads of each.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from work import Work, accuracy, arguments, load, network, report


class Classifier(nn.Module):
    """The network with the two methods that pfl asks for; counts its training steps."""

    def __init__(self, work: Work, layout: torch.memory_format) -> None:
        super().__init__()
        self.body = network(work.settings).to(memory_format=layout)
        load(self.body, work.initial)
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return F.cross_entropy(self.body(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict:
        return {}


def run(work: Work, layout: torch.memory_format) -> None:
    """All rounds in this process, which may be one of several."""
    # pfl joins its group of processes when it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class TrainOnly(FederatedAveraging):
        """Without the evaluation before and after training, which pfl always does in round 0."""

        def get_next_central_contexts(self, *args, **kwargs):
            contexts, *rest = super().get_next_central_contexts(*args, **kwargs)
            plain = contexts and tuple(
                dataclasses.replace(context, do_evaluation=False) for context in contexts
            )
            return plain, *rest

    class Timer(TrainingProcessCallback):
        """Notes when each round ended and how many steps this process had taken by then."""

        def on_train_begin(self, *, model) -> Metrics:
            distributed.all_reduce([torch.zeros(1)])  # all processes have loaded their data
            self.marks, self.steps = [time.perf_counter()], [0]
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            self.marks.append(time.perf_counter())
            self.steps.append(module.steps)
            return False, Metrics()

    def user(key: tuple[int, int]) -> PyTorchTensorDataset:
        """The rows of a client in the order of a round; pfl itself does not shuffle."""
        t, cid = key
        rows = work.train[cid][torch.cat(work.orders[t, cid])]
        return PyTorchTensorDataset((work.inputs(rows, layout), work.y[rows]))

    if len({len(cohort) for cohort in work.cohorts}) > 1 or len(work.orders[0, 0]) > 1:
        sys.exit("pfl_peer needs cohorts of one size and one local epoch.")
    # A user of pfl is a client in a round, so that the cohorts are those of the workload. The
    # weights let pfl share clients of unequal size between its processes.
    keys = {(t, i): len(work.train[i]) for t, cohort in enumerate(work.cohorts) for i in cohort}
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(keys)), keys)
    module = Classifier(work, layout)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    accuracy(module.body, work, work.test[0])  # as the others: used once before the clock runs
    timer = Timer()
    rounds = len(work.cohorts)
    TrainOnly().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=len(work.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=work.settings["lr"],
            local_batch_size=work.settings["batch"],
        ),
        callbacks=[timer],
        send_metrics_to_platform=False,
    )
    taken = torch.tensor(timer.steps).diff()
    steps = [int(n) for n in distributed.all_reduce([taken])[0]]
    if steps != work.steps:
        sys.exit(f"pfl trained {steps} steps instead of {work.steps}.")
    if distributed.global_rank == 0:
        seconds = [b - a for a, b in pairwise(timer.marks)]
        report(seconds, list(module.body.parameters()), accuracy=None, steps=steps)


def distribute(workers: int) -> int:
    """Start this script once for every worker, as pfl's guide does; the worst exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "PFL_WORKER_ADDRESSES": ",".join([f"127.0.0.1:{port}"] * workers),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    call = [sys.executable, *sys.argv]
    started = [
        subprocess.Popen(call, env={**shared, "PFL_WORKER_RANK": str(rank)})
        for rank in range(workers)
    ]
    try:
        # If one fails the others would wait for it for ever.
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started):
                break
            time.sleep(0.1)
    finally:
        for process in started:
            process.terminate()
            process.wait()
    return max(abs(process.returncode) for process in started)


def main() -> None:
    """Alone, as one of several workers, or as the one that starts them."""
    args = arguments()
    if args.evaluate:
        sys.exit(
            "pfl_peer has no --evaluate: pfl then also tests every client's training data before "
            "and after local training, which is not the work of the others."
        )
    if args.workers > 1 and "PFL_WORKER_RANK" not in os.environ:
        sys.exit(distribute(args.workers))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    layout = torch.contiguous_format if args.plain else torch.channels_last
    run(Work.read(args.work), layout)


if __name__ == "__main__":
    main()
