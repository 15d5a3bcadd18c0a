"""EfficientNet-Lite0, for whose ImageNet weights a package exists (`models/pretrained.py`)."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.core.net import Net
from fedloom.errors import BadInput, UnknownName
from fedloom.models import models
from fedloom.models.layers import HeConv2d, Stages, chain, require_image

FEATURES = 1280
_STEM = 32


class _Group(NamedTuple):
    """Blocks of the same width; the first one has the stride and the change of width."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


_GROUPS = {
    "stage1": _Group(1, 3, 1, 1, 16),
    "stage2": _Group(2, 3, 2, 6, 24),
    "stage3": _Group(2, 5, 2, 6, 40),
    "stage4": _Group(3, 3, 2, 6, 80),
    "stage5": _Group(3, 5, 1, 6, 112),
    "stage6": _Group(4, 5, 2, 6, 192),
    "stage7": _Group(1, 3, 1, 6, 320),
}
WIDTHS = {"stem": _STEM, **{name: group.width for name, group in _GROUPS.items()}}
"""Part -> the channels it gives; a network may begin behind any of them."""


class PixelScale(nn.Module):
    """Pixels from 0 to 1 as the published weights want them: (255 x - 127) / 128."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 255 - 127) / 128


class SameConv2d(HeConv2d):
    """A convolution that pads as TensorFlow does: where the stride leaves an odd number of rows to
    add, the larger half goes below and to the right."""

    def forward(self, x: Tensor) -> Tensor:
        (bottom, top), (right, left) = (
            _padding(size, kernel, stride)
            for size, kernel, stride in zip(
                x.shape[-2:], self.kernel_size, self.stride, strict=True
            )
        )
        return super().forward(F.pad(x, (left, right, top, bottom)))


def _padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Rows to add after and before."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total - total // 2, total // 2


class InvertedBottleneck(nn.Module):
    """Expand the channels, convolve each on its own, project; the identity beside it where the
    shape stays. Without squeeze-and-excitation, as all Lite networks."""

    def __init__(self, width_in: int, group: _Group, stride: int) -> None:
        super().__init__()
        inner = width_in * group.expansion
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if group.expansion != 1:
            parts["expand"] = HeConv2d(width_in, inner, 1, bias=False)
            parts["expand_norm"] = _norm(inner)
            parts["expand_relu"] = nn.ReLU6()
        parts["depthwise"] = _convolution(inner, inner, group.kernel, stride, groups=inner)
        parts["depthwise_norm"] = _norm(inner)
        parts["depthwise_relu"] = nn.ReLU6()
        parts["project"] = HeConv2d(inner, group.width, 1, bias=False)
        parts["project_norm"] = _norm(group.width)
        self.layers = nn.Sequential(parts)
        self.adds_input = stride == 1 and width_in == group.width

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z + x if self.adds_input else z


@models
def efficientnet_lite0(
    shape: tuple[int, ...], classes: int, after: str = "", stages: Stages = "body"
) -> Net:
    """EfficientNet-Lite0 (Tan and Le 2019, the variant for small devices): feature of 1280.

    It takes pixels from 0 to 1 (`normalize = "none"`) and scales them itself. A run's
    `start = "pretrained:efficientnet_lite0"` begins with ImageNet's weights (extra `pretrained`).
    The dropout and the dropped blocks of its first training are left out.

    Args:
        after: build only what comes behind this part (`stem`, `stage1` to `stage7`), for inputs
            that a run's `encoder` has brought that far.
        stages: `fine` makes stages of `stem`, `stage1` to `stage7` and `top`.

    >>> net = efficientnet_lite0((192, 3, 3), 7, after="stage6", stages="fine")
    >>> {name: tuple(net.shape_of(name)) for name in net.reads}
    {'stage7': (320, 3, 3), 'top': (1280,), 'head': (7,)}
    """
    require_image("efficientnet_lite0", shape, least=1, instead="mlp")
    if after and after not in WIDTHS:
        raise UnknownName("part of efficientnet_lite0", after, WIDTHS)
    if after and shape[0] != WIDTHS[after]:
        raise BadInput(
            f"efficientnet_lite0(after={after}) takes the {WIDTHS[after]} channels that {after}"
            f" gives, the data have {shape[0]}; set encoder = 'efficientnet_lite0/{after}'"
        )
    parts = _parts(shape[0])
    behind = list(parts)[list(parts).index(after) + 1 :] if after else list(parts)
    return chain(
        shape, {name: parts[name] for name in behind}, nn.Linear(FEATURES, classes), stages
    )


def _parts(channels: int) -> OrderedDict[str, nn.Module]:
    """Everything before the head, by name."""
    stem = OrderedDict(
        scale=PixelScale(),
        conv=_convolution(channels, _STEM, 3, 2),
        norm=_norm(_STEM),
        relu=nn.ReLU6(),
    )
    parts: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(stem))
    width = _STEM
    for name, group in _GROUPS.items():
        first = InvertedBottleneck(width, group, group.stride)
        others = [InvertedBottleneck(group.width, group, 1) for _ in range(group.blocks - 1)]
        parts[name] = nn.Sequential(first, *others)
        width = group.width
    top = OrderedDict(
        conv=HeConv2d(width, FEATURES, 1, bias=False),
        norm=_norm(FEATURES),
        relu=nn.ReLU6(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    parts["top"] = nn.Sequential(top)
    return parts


def _convolution(width_in: int, width: int, kernel: int, stride: int, groups: int = 1) -> nn.Conv2d:
    if stride == 1:  # the same rows are added on both sides
        return HeConv2d(width_in, width, kernel, padding=kernel // 2, groups=groups, bias=False)
    return SameConv2d(width_in, width, kernel, stride, groups=groups, bias=False)


def _norm(width: int) -> nn.BatchNorm2d:
    """With the published eps. The momentum is torch's 0.1 and not the published 0.01, by which
    running statistics of a client with two batches a round would lag fifty rounds behind."""
    return nn.BatchNorm2d(width, eps=1e-3)
