"""VHL against wizard1203/VHL: the server's model and every upload."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fedloom.core.tree import Tree
from fedloom.method_tools.virtual_data import virtual_data
from reproduce.parity.driving import ONE_ABSENT, SKEWED, Classifier, absent, uploads
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Played,
    Recorded,
    empty_module,
    two_layers,
    under,
)

CLASSES, PER_CLASS, NOISE = 4, 8, 12
METHOD = (
    "fedavg(lr=0.02, epochs=2, batch_size=5, momentum=0.5, weight_decay=0.0001)"
    " + vhl({}, per_class=8, batch=12)"
)


class Model(Classifier):
    """Logits and features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return self.head(z), z


def kaiser_of_old_numpy() -> None:
    """numpy.lib.function_base, which NumPy 2 removed; `kaiser` is imported from it and not used."""
    empty_module("numpy.lib.function_base", kaiser=None)


def virtual_batches(recorded: Recorded, r: Played, cid: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The virtual rows of every step: what the client's generator for them gives."""
    data = virtual_data((6,), CLASSES, PER_CLASS, r.plan.seed)
    drawn = r.plan.gen(cid, ("vhl", "model"))
    while True:
        idx = torch.randint(len(data), (NOISE,), generator=drawn)
        yield data.x(idx), data.y[idx]


def theirs(recorded: Recorded) -> list[Tree]:
    """Their trainer's epoch and their averaging."""
    from loss_fn.losses import proxy_align_loss
    from trainers.normal_trainer import NormalTrainer
    from utils.data_utils import average_named_params

    members = recorded.parity.data
    args = Namespace(fedprox=False, scaffold=False, model_out_feature=True, VHL_alpha=0.7)
    args.VHL_feat_align, args.VHL_align_local_epoch, args.VHL_label_style = True, 100, "patch"
    args.record_dataframe = False
    loss = proxy_align_loss(
        inter_domain_class_match=True,
        noise_feat_detach=False,
        noise_contrastive=False,
        inter_domain_weight=0.0,
        inter_class_weight=0.5,
        noise_supcon_weight=0.0,
        noise_label_shift=0,
        device="cpu",
    )
    server = Model(recorded)
    seen = []
    for r in recorded.rounds:
        sent: list[tuple[int, Tree]] = []
        for cid in r.cohort:
            model = Model(recorded)
            model.load_state_dict(server.state_dict())
            trainer = client(args, model, loss, virtual_batches(recorded, r, cid))
            loader = Batches(members[cid].train)
            for epoch, batches in enumerate(r.epochs(cid)):
                loader.queue = [batches]
                passing = iter(loader)
                trainer.get_train_batch_data = lambda _, passing=passing: next(passing)
                NormalTrainer.VHL_train_one_epoch(
                    trainer,
                    train_data=batches,
                    device="cpu",
                    epoch=epoch,
                    tracker=mock.MagicMock(),
                    metrics=mock.MagicMock(),
                    make_summary=False,
                )
            sent.append((len(members[cid].train), model.state_dict()))
        total = sum(n for n, _ in sent)
        tree: Tree = {}
        for cid, (_, state) in zip(r.cohort, sent, strict=True):
            tree |= under(f"client {cid}", state)
        averaged = average_named_params(sent, [n / total for n, _ in sent], inplace=False)
        server.load_state_dict(averaged)
        seen.append(tree | under("server", server.state_dict()))
    return seen


def client(
    args: Namespace, model: Model, loss: Any, virtual: Iterator[tuple[Tensor, Tensor]]
) -> Any:
    """What their epoch reads of a trainer; its noise is ours."""
    return SimpleNamespace(
        args=args,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5, weight_decay=0.0001),
        proxy_align_loss=loss,
        generate_noise_data=lambda **_: next(virtual),
        lr_scheduler=None,
        server_index=0,
        client_index=0,
    )


PARITY = Parity(
    repository="wizard1203/VHL",
    commit="c5aa7a1fb0581e5f567183b7af49d449dabf6ce9",
    method=METHOD.format("alpha=0.7, lam=0.5, tau=0.07"),
    wrong=(
        METHOD.format("alpha=0.7, lam=0.5, tau=0.1"),
        METHOD.format("alpha=0.6, lam=0.5, tau=0.07"),
        METHOD.format("alpha=0.7, lam=0.4, tau=0.07"),
    ),
    data=SKEWED,
    net=two_layers,
    ours=uploads,
    theirs=theirs,
    cohorts=ONE_ABSENT,
    patches=(
        absent(
            "torchvision",
            "torchvision.transforms",
            "torchvision.utils",
            "torchvision.datasets",
            "torchvision.datasets.utils",
            "torchvision.models",
            "matplotlib",
            "matplotlib.pyplot",
            "wandb",
            "yacs",
            "yacs.config",
        ),
        kaiser_of_old_numpy,
    ),
    deviations=(
        Deviation(
            what="the virtual data",
            paper="an untrained StyleGAN-v2",
            code="files of such images",
            flag="the program is given the noise that ours makes",
        ),
        Deviation(
            what="classes of the noise",
            paper="those of the real data",
            code="classes of their own, mapped back for the alignment",
            flag="the program is driven without the shift",
        ),
        Deviation(
            what="features of the noise in the alignment",
            paper="trained like the real ones",
            code="held fixed by the published command, which adds 0.1 SupCon among the noise",
            flag="both switched off",
        ),
    ),
)
