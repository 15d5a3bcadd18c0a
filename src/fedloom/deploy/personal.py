"""The model a site ends up with: one file of tensors, and a card that says how to use them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.digest import digest
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.core.tree import State
from fedloom.core.wire import pack, unpack
from fedloom.data.federated import FederatedData, Inputs
from fedloom.data.normalization import Scaling
from fedloom.data.source import Source
from fedloom.errors import BadInput
from fedloom.extensions import load_extensions
from fedloom.files import write_atomic, write_json
from fedloom.methods import parse_method
from fedloom.models import build_model
from fedloom.runs.config import RunConfig
from fedloom.runs.folder import current_versions

_CARD = "card.json"


def save_personal(
    folder: Path, state: State, visit: Visit, run: RunConfig, data: FederatedData
) -> None:
    """Write the model of a site, whose data this is; a kill in between leaves the previous one."""
    source, scaling = data.source, data.scaling(0)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tensors = f"personal-{digest(state)[:12]}.safetensors"
    card = {
        "tensors": tensors,
        "imports": list(run.imports),
        "method": run.method,
        "model": run.model,
        "client": visit.cid,
        "clients": visit.program.clients,
        "seed": run.seed,
        "round": visit.down.plan.t,
        "training_rows": len(visit.data.train),
        "shape": list(source.shape),
        "kind": source.kind,
        "class_names": list(source.class_names),
        "vocabulary": source.vocabulary,
        "mean": list(scaling.mean),
        "std": list(scaling.std),
        "versions": current_versions(),
    }
    write_atomic(folder / tensors, pack(state))
    write_json(folder / _CARD, card)  # now these tensors are the model
    for old in folder.glob("personal-*.safetensors"):
        if old.name != tensors:
            old.unlink(missing_ok=True)


@dataclass(frozen=True)
class Personal:
    """A saved personal model."""

    program: Program
    state: State
    card: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path, imports: Sequence[str] | None = None) -> Personal:
        """From the folder a site was left with.

        `imports` are the files or modules with the method and model, where they are no longer
        found under the names that they had in the run.
        """
        place = Path(folder)
        try:
            card = json.loads((place / _CARD).read_text(encoding="utf-8"))
            state = unpack((place / card["tensors"]).read_bytes())
        except OSError as e:
            raise BadInput(f"there is no personal model in {folder} ({e.strerror})") from None
        load_extensions(card.get("imports", ()) if imports is None else imports)
        nets = [
            build_model(
                expression.strip(),
                tuple(card["shape"]),
                len(card["class_names"]),
                seed=card["seed"],
                vocabulary=card["vocabulary"],
            )
            for expression in card["model"].split("|")
        ]
        method = parse_method(card["method"])
        return cls(Program(method, nets, card["clients"], card["seed"]), state, card)

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Probabilities [n, K] for raw rows, as the site's data has them."""
        card = self.card
        source = Source.from_arrays(x, [0] * len(x), kind=card["kind"], class_names=["?"])
        inputs = Inputs.of(source, Scaling(tuple(card["mean"]), tuple(card["std"])), None)
        rows = inputs(torch.arange(len(source)), None)
        net = self.program.net(card["client"])
        return self.program.method.predict(net, self.state, rows)
