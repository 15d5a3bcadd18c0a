"""FedAvg on Flower: its own strategy on its simulation engine, one CPU for each client at a time.

Start it with `peers.command("flower", ...)`: Ray needs a network and process ids of its own.
`seconds` run from the first configuration of a round, when Ray's workers have loaded the data.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import pairwise

import torch
from flower_app.client_app import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Work, arguments, load, network, report

BEGUN = time.perf_counter()


class Timed(FedAvg):
    """Flower's FedAvg, which also notes when rounds end and what the clients report."""

    marks: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    score: float | None = None

    def configure_train(self, server_round, arrays, config, grid):
        self.marks = self.marks or (time.perf_counter(),)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        done = [int(r.content["metrics"]["steps"]) for r in replies if not r.has_error()]
        self.steps += (sum(done),)
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round, replies):
        replies = list(replies)
        if replies:
            scores = [r.content["metrics"]["accuracy"] for r in replies]
            self.score = sum(scores) / len(scores)
        metrics = super().aggregate_evaluate(server_round, replies)
        self.marks += (time.perf_counter(),)
        return metrics


def warm(grid: Grid, config: dict[str, str | bool], clients: int) -> None:
    """Wait until all nodes are there and both workers hold the data."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    content = RecordDict({"config": ConfigRecord(config)})
    grid.send_and_receive(
        [Message(content, dst_node_id=node, message_type="query") for node in nodes]
    )


def main() -> None:
    """All rounds, timed in the server app."""
    args = arguments()
    torch.set_num_threads(1)
    work = Work.read(args.work)
    clients = len(work.train)
    if any(len(cohort) != clients for cohort in work.cohorts):
        sys.exit("flower_peer needs a workload in which every client trains in every round.")
    model = network(work.settings)
    load(model, work.initial)
    strategy = Timed(fraction_evaluate=float(args.evaluate), min_available_nodes=clients)
    config = {"work": str(args.work.resolve()), "plain": args.plain}
    result = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        warm(grid, config, clients)
        result.append(
            strategy.start(
                grid,
                ArrayRecord(model.state_dict()),
                num_rounds=len(work.cohorts),
                train_config=ConfigRecord(config),
                evaluate_config=ConfigRecord(config),
            )
        )

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run_simulation(
            server,
            client_app,
            num_supernodes=clients,
            backend_config={
                "init_args": {
                    "num_cpus": args.workers,
                    "_temp_dir": folder,
                    "log_to_driver": False,
                },
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    if list(strategy.steps) != work.steps:
        sys.exit(f"flower trained {strategy.steps} steps instead of {work.steps}.")
    marks = strategy.marks
    report(
        [b - a for a, b in pairwise(marks)],
        list(result[0].arrays.to_torch_state_dict().values()),
        accuracy=strategy.score,
        steps=strategy.steps,
        startup_seconds=marks[0] - BEGUN,
    )


if __name__ == "__main__":
    main()
