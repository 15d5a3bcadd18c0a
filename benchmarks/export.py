"""Write a run's data, batches and initial weights for contestants that do not know fedloom."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedloom.core.phase import Phase
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment


def export(config: RunConfig, folder: Path) -> Experiment:
    """One folder with everything a plain loop needs."""
    experiment = Experiment.build(config)
    program, data = experiment.program, experiment.data
    plans = [plan for plan in experiment.plans if plan.kind == "train"]
    cohorts = [program.cohort(plan, config.participation) for plan in plans]
    inputs = data._inputs
    arrays = {"x": np.asarray(data.source.x), "y": np.asarray(data.source.y)}
    for cid, rows in enumerate(data.partition.clients):
        arrays |= {f"train{cid}": rows.train, f"test{cid}": rows.test}
    for t, (plan, cohort) in enumerate(zip(plans, cohorts, strict=True)):
        for cid in cohort:
            arrays[f"order{t}.{cid}"] = _orders(experiment, plan, cid)
    arrays |= {f"w:{k}": v.numpy() for k, v in program.nets[0].tree().items()}
    settings = {
        "model": config.model,
        "clients": len(data),
        "batch": program.method.opt.batch,
        "lr": program.method.opt.lr,
        "scale": inputs.scale,
        "offset": inputs.offset,
        "cohorts": cohorts,
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "work.npz", **arrays)
    (folder / "settings.json").write_text(json.dumps(settings))
    return experiment


def _orders(experiment: Experiment, plan, cid: int) -> np.ndarray:
    """The order of a client's rows in each epoch of its first fit. [E, n]"""
    schedule = Phase().over(experiment.program.method.opt, plan.t)
    gen = plan.gen(cid, ("batches", "model", 1))
    n = len(experiment.data.partition.clients[cid].train)
    return np.stack([np.concatenate(batches) for batches in schedule.epochs(n, gen)])
