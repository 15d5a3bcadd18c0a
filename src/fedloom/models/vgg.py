"""VGG-11 without BatchNorm."""

from __future__ import annotations

from torch import nn

from fedloom.core.net import Net
from fedloom.models import models
from fedloom.models.layers import HeConv2d, require_image

_BLOCKS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@models
def vgg11(shape: tuple[int, ...], classes: int) -> Net:
    """FedBR's network for CIFAR-10 and PACS: VGG-11's convolutions, averaged to 512, the head.

    Its 9.2 million parameters are those of FedBR's Table 7: VGG's three full layers are left out.
    """
    require_image("vgg11", shape, least=32, instead="groupnorm_cnn or resnet18(stem=cifar)")
    layers: list[nn.Module] = []
    width_in = shape[0]
    for block in _BLOCKS:
        for width in block:
            layers += [HeConv2d(width_in, width, 3, padding=1), nn.ReLU()]
            width_in = width
        layers.insert(-1, nn.MaxPool2d(2))
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(shape, body=body, head=nn.Linear(512, classes))
