"""The same run on fedloom: `fedloom run` as a user would start it, timed round by round."""

from __future__ import annotations

import json
import time
from itertools import pairwise

from work import arguments, report

import fedloom as fl
from fedloom.launch.start import engine_of, start
from fedloom.record import RoundRecord, Summary
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.watcher import Watcher


class Timer(Watcher):
    """Notes when each round ended."""

    def begun(self, run: fl.RunView) -> None:
        self.marks = [time.perf_counter()]

    def step(self, run: fl.RunView, record: RoundRecord) -> None:
        self.marks.append(time.perf_counter())

    def ended(self, run: fl.RunView, summary: Summary) -> None:
        self.seconds = [b - a for a, b in pairwise(self.marks)]


def main() -> None:
    """The run that `config.json` of the workload describes."""
    args = arguments()
    settings = json.loads((args.work / "config.json").read_text())
    every = 1 if args.evaluate else settings["rounds"]
    config = RunConfig.checked({**settings, "eval_every": every, "workers": args.workers})
    timer = Timer()
    with engine_of(config) as engine:
        result = start(Experiment.build(config), engine, [timer])
    order = result.experiment.program.nets[0].keys
    weights = [result.server["model"][k] for k in order]
    report(timer.seconds, weights, accuracy=result.accuracy)


if __name__ == "__main__":
    main()
