"""FedAvg by PFLlib's own server and clients, which train one after another in one process.

PFLlib is no package: `PFLLIB` names a checkout of https://github.com/TsingZ0/PFLlib, of which
`system/` is used as it is (measured at d832e76). Its network, data files and clock are its own;
the rows, the number of steps and their sizes are those of the others. torch has as many threads as
the others have processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from work import Work, arguments, load, network, report


def main() -> None:
    """All rounds, timed by PFLlib."""
    args = arguments()
    checkout = os.environ.get("PFLLIB")
    if checkout is None:
        sys.exit("pfllib_peer needs PFLLIB=FOLDER, a checkout of PFLlib.")
    work = Work.read(args.work.resolve())
    size = work.settings["batch"]
    if any(len(rows) % size for rows in work.train):
        sys.exit("pfllib_peer needs clients of whole batches: PFLlib drops the last, smaller one.")
    torch.set_num_threads(args.workers)
    system = Path(checkout).resolve() / "system"
    sys.path.insert(0, str(system))
    from flcore.servers.serveravg import FedAvg

    with tempfile.TemporaryDirectory() as folder:
        write_data(work, Path(folder) / "dataset" / "exported")
        (Path(folder) / "system").mkdir()
        os.chdir(Path(folder) / "system")  # it looks for ../dataset
        model = network(work.settings)
        load(model, work.initial)
        server = FedAvg(options(work, model), 0)
        server.train()
        report(server.Budget, list(server.global_model.parameters()), accuracy=None)


def write_data(work: Work, folder: Path) -> None:
    """A file for each client and split, as PFLlib's own scripts leave them."""
    for split, rows_of in (("train", work.train), ("test", work.test)):
        (folder / split).mkdir(parents=True)
        for cid, rows in enumerate(rows_of):
            x = work.inputs(rows, torch.contiguous_format).numpy()
            data = {"x": x, "y": work.y[rows].numpy()}
            np.savez_compressed(folder / split / f"{cid}.npz", data=np.array(data, dtype=object))


def options(work: Work, model: torch.nn.Module) -> Namespace:
    """PFLlib's command line: its defaults, and the workload."""
    return Namespace(
        algorithm="FedAvg",
        auto_break=False,
        batch_num_per_client=2,
        batch_size=work.settings["batch"],
        client_drop_rate=0.0,
        dataset="exported",
        device="cpu",
        device_id="0",
        dlg_eval=False,
        dlg_gap=100,
        eval_gap=10**6,  # it tests before the first round, which does not count
        few_shot=0,
        fine_tuning_epoch_new=0,
        global_rounds=len(work.cohorts) - 1,  # it trains one more
        goal="speed",
        join_ratio=1.0,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        local_epochs=len(work.orders[0, 0]),
        local_learning_rate=work.settings["lr"],
        model=model,
        num_classes=10,
        num_clients=len(work.train),
        num_new_clients=0,
        random_join_ratio=False,
        save_folder_name="items",
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10000,
        top_cnt=100,
        train_slow_rate=0.0,
    )


if __name__ == "__main__":
    main()
