"""Any encoder of the timm library, with pretrained weights or without (extra `timm`)."""

from __future__ import annotations

from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedloom.core.net import Net
from fedloom.errors import BadInput, UnknownName
from fedloom.models import models
from fedloom.models.layers import require_image

PLACES = ("hf-hub:", "local-dir:")
"""Before the name of a place that has an encoder's configuration and weights."""


@models
def timm_encoder(
    shape: tuple[int, ...],
    classes: int,
    name: str = "resnet18",
    pretrained: bool | None = None,
) -> Net:
    """A timm model without its classifier as body, and a new linear head.

    Args:
        name: a timm architecture, or one with its pretraining tag (`'resnet18.tv_in1k'`, quoted);
            or `'local-dir:FOLDER'`, a folder as timm saves models for the hub.
        pretrained: start from the weights the hub has for it; where `name` is a place of weights
            (`local-dir:`, `hf-hub:`), from those unless it is false. Without network, a run's
            `start` takes a local file of the whole model, and `start_without` its classifier.
    """
    require_image("timm_encoder", shape, least=1, instead="mlp")
    if pretrained is None:
        pretrained = name.startswith(PLACES)
    body = _create(_timm(), name, pretrained, shape[0])
    return Net(shape, body=body, head=nn.Linear(_feature_width(body, name, shape), classes))


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as e:
        raise BadInput(
            f"timm_encoder needs the package {e.name}; install it with: pip install 'fedloom[timm]'"
        ) from None
    module: ModuleType = timm
    return module


def _create(timm: ModuleType, name: str, pretrained: bool, channels: int) -> Any:
    if not name.startswith(PLACES) and not timm.is_model(name):
        raise UnknownName("timm encoder", name, get_close_matches(name, timm.list_models(), n=1))
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=channels)
    except Exception as e:
        if not pretrained:
            raise BadInput(f"timm cannot build {name!r} ({e})") from e
        # The hub's clients raise errors of many libraries; all of them mean the same here.
        raise BadInput(
            f"could not get the pretrained weights of {name!r} ({e}); download the model's "
            f"safetensors file and begin with it: start = 'FILE'"
        ) from e


def _feature_width(body: nn.Module, name: str, shape: tuple[int, ...]) -> int:
    body.eval()
    try:
        with torch.no_grad():
            z = body(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError) as e:
        raise BadInput(
            f"the timm encoder {name!r} does not take inputs of shape {shape} ({e}); resize the "
            f"images or choose another encoder"
        ) from None
    finally:
        body.train()
    if z.ndim != 2:
        raise BadInput(
            f"the timm encoder {name!r} makes {z.ndim - 1}-dimensional features, not vectors"
        )
    return int(z.shape[1])
