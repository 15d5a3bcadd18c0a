"""SphereFed: features on the unit sphere under a classifier that is fixed and calibrated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.ridge import normal_equations, ridge_solution


class Sphere(nn.Module):
    """Scales features to length one."""

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z.flatten(1), dim=1)


class FixedOrthogonal(nn.Linear):
    """Orthonormal class vectors, no bias, never trained."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes, bias=False)
        self.weight.requires_grad_(False)

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)


@register
@dataclass(frozen=True, kw_only=True)
class SphereFed(Method):
    """Hyperspherical federated learning (Dong et al., ECCV 2022).

    The features are z = f(x) / |f(x)|. The K rows of the classifier W are orthonormal, the same for
    all clients, and not trained. Each round::

        client i  f: E epochs on |W z - onehot(y)|^2 / K         W z holds the cosines to the rows
        server    f <- sum_i n_i f_i / sum_i n_i

    After the last round the classifier is calibrated, with the final f::

        client i  sends Z_i'Z_i [d, d] and Z_i'Y_i [d, K] of its features and one-hot labels
        server    W' <- (sum_i Z_i'Z_i + ridge I)^-1 sum_i Z_i'Y_i

    The sums equal those over all data in one place, so the calibration is exact and takes one
    round.

    Hyper-parameters: `ridge` 1e-3 (our choice; none of the papers that compare with SphereFed
    states one). `calibrate=False` keeps the fixed classifier. It needs a larger learning rate than
    other methods: DualFed's are 1.0 on Office-Home and 0.1 on DomainNet and PACS, 100 and 10 times
    its others' 0.01.

    Deviations: the loss is a mean over samples and over classes. Only then are DualFed's learning
    rates, divided by its K = 65, 10 and 7 classes, near the 0.01 of its other methods; with a loss
    summed over classes the same rate would have to be K times smaller. Probabilities are
    softmax(W z): their largest entry is the method's prediction, their values are no estimate of
    confidence.

    Leaves the client: the model (its classifier never changes), and once Z'Z and Z'Y, which reveal
    its classes and the sum of its features per class.

    >>> [p.owner for p in SphereFed().schedule(1)]
    ['model', 'spherefed.calibrate']
    """

    name: ClassVar[str] = "spherefed"
    family: ClassVar[str] = "fixed classifier"
    needs: ClassVar[tuple[Need, ...]] = ("classes", "plain_loss")
    reveals: ClassVar[tuple[str, ...]] = ("class_means", "class_counts")
    against_example_noise: ClassVar[str] = (
        "sums of its features leave the client, which no clipped gradient bounds"
    )
    passes_on_average: ClassVar[bool] = True
    after: ClassVar[tuple[str, ...]] = ("calibrate",)
    refuses: ClassVar[tuple[str, ...]] = ("mixup", "fedmix")
    # DualFed gives it ten to a hundred times the others' rate.
    tunable: ClassVar[Tunable] = {"lr": Log(1e-2, 10), "ridge": Log(1e-5, 1)}
    ridge: float = 1e-3
    calibrate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ridge <= 0:
            raise BadInput(f"ridge must be more than 0, not {self.ridge}; set calibrate=false?")

    @property
    def against_client_noise(self) -> str:  # type: ignore[override]
        """The calibration's reason."""
        if not self.calibrate:
            return ""
        return (
            "the server inverts the sum of the Gram matrices that clients send, and noise makes it"
            " no Gram matrix; set calibrate=false"
        )

    def schedule(self, rounds: int) -> list[Plan]:
        plans = super().schedule(rounds)
        if self.calibrate:
            return plans
        return [plan for plan in plans if plan.owner != f"{self.name}.calibrate"]

    def extend(self, net: Net, clients: int) -> None:
        width = net.shape_of(net.feature).numel()
        classes = net.shape_of(net.logits)[-1]
        if width < classes:
            raise BadInput(
                f"spherefed needs as many features as classes to make these orthogonal;"
                f" the model has {width} for {classes} classes"
            )
        net.insert("sphere", Sphere())
        net.replace("head", FixedOrthogonal(width, classes))

    def loss(self, b: Batch, s: Site) -> Tensor:
        cosines = b.out["head"]
        target = F.one_hot(b.y, cosines.shape[1]).to(cosines.dtype)
        return (cosines - target).pow(2).mean()

    def special(self, s: Site) -> State:
        """The client's part of the calibration."""
        z = s.scan(s.net.feature)
        return {self.name: normal_equations(z.cpu(), s.data.train.y, s.data.classes)}

    def aggregate(self, r: Round) -> State:
        if r.plan.kind != "special":
            return super().aggregate(r)
        model = r.server["model"]
        sums = r.sum(self.name)
        w = ridge_solution(sums["zz"], sums["zy"], self.ridge).T
        return {"model": {**model, "head.weight": w.to(model["head.weight"])}}
