"""A pretrained network cut at one of its parts, which nobody trains: images in, outputs out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from torch import Tensor

from fedloom.core.net import Net, stage_of
from fedloom.core.tree import Tree
from fedloom.errors import UnknownName
from fedloom.models import build_model
from fedloom.models.pretrained import PRETRAINED, pretrained_weights
from fedloom.models.weights import fill


@dataclass(frozen=True, eq=False)
class FixedEncoder:
    """The network for images of one shape, and its part whose outputs are wanted."""

    net: Net
    part: str

    @classmethod
    def of(cls, expression: str, shape: tuple[int, ...]) -> FixedEncoder:
        """By `NETWORK/PART`, with drawn weights: its form needs no others."""
        name, part = network_and_part(expression)
        # It ends before its head, so any number of classes will do.
        net = build_model(f"{name}(stages=fine)", shape, 2, seed=0)
        parts = [stage for stage in net.reads if stage != net.logits]
        if part not in parts:
            raise UnknownName(f"part of {name}", part, parts)
        return cls(net, part)

    def filled(self, weights: Tree, expression: str) -> FixedEncoder:
        """The same with these weights."""
        fill(self.net, weights, "head.*", f"encoder = {expression!r}")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one output."""
        return tuple(self.net.shape_of(self.part))

    @cached_property
    def weights(self) -> Tree:
        """Of the stages up to the part."""
        stages = set(self.net.path_to(self.part))
        return {key: v for key, v in self.net.tree().items() if stage_of(key) in stages}

    def __call__(self, weights: Tree, images: Tensor) -> Tensor:
        """Outputs of images with pixels of one byte."""
        return self.net(weights, images.float() / 255, want=self.part)[self.part]


@lru_cache(maxsize=4)
def pretrained_encoder(expression: str, shape: tuple[int, ...]) -> FixedEncoder:
    """With the weights of its package."""
    weights, _ = pretrained_weights(network_and_part(expression)[0])
    return FixedEncoder.of(expression, shape).filled(weights, expression)


def network_and_part(expression: str) -> tuple[str, str]:
    """
    >>> network_and_part("efficientnet_lite0/stage6")
    ('efficientnet_lite0', 'stage6')
    """
    name, _, part = expression.partition("/")
    if name not in PRETRAINED:
        raise UnknownName("pretrained network", name, PRETRAINED)
    return name, part
