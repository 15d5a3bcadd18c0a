"""Weights for a network that another training left: tensors by name, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedloom.core.net import Net
from fedloom.core.tree import Tree
from fedloom.errors import BadInput
from fedloom.models.lora import LORA

_COUNTER = "num_batches_tracked"
"""Of BatchNorm: absent from files of older torch versions, and read by no forward pass."""


def read_weights(path: Path) -> Tree:
    """The tensors of a safetensors file."""
    try:
        tensors: Tree = load_file(path)
    except SafetensorError as e:
        raise BadInput(
            f"{str(path)!r} is not a safetensors file ({e}); other formats are not read, "
            f"convert it with safetensors.torch.save_file"
        ) from None
    return tensors


def fill(net: Net, tensors: Tree, without: str, origin: str) -> None:
    """Begin the network with these tensors.

    A tensor is found by its key (`body.conv1.weight`) or, in files of other programs, by its key
    without the stage (`conv1.weight`). Every tensor of the file has to find its place and every
    tensor of the network its value, because a network that was filled by half trains without
    complaint and worse; the words of `without` are patterns of those, of the file or of the
    network, that are left out. Adapters, which begin at nothing, may always be absent. `origin`
    names the file in messages.
    """
    words = without.split()
    taken = {name: value for name, value in tensors.items() if not _matches(name, words)}
    for word in words:
        if not any(fnmatchcase(name, word) for name in (*tensors, *net.keys)):
            raise BadInput(
                f"start_without: {word!r} matches no tensor of {origin} and none of the network"
            )
    values = {_place(net, name, origin): value for name, value in taken.items()}
    for key, value in values.items():
        if value.shape != net.initial[key].shape:
            raise BadInput(
                f"{origin}: {key} has shape {tuple(value.shape)}, this network needs"
                f" {tuple(net.initial[key].shape)}; check the channels of the data and the model's"
                f" options, or begin without it: start_without = '{_stage_pattern(key)}'"
            )
    missing = [k for k in net.keys if k not in values and not _matches(k, words)]
    missing = [k for k in missing if not k.endswith(_COUNTER) and LORA not in k.split(".")]
    if missing:
        raise BadInput(
            f"{origin} lacks {missing[0]!r} ({len(missing)} of {len(net.keys)} tensors); name what"
            f" shall stay as drawn, for instance start_without = '{_stage_pattern(missing[0])}'"
        )
    kept = {k: v for k, v in net.tree().items() if k not in values}
    net.load_state_dict({**kept, **values})


def _matches(name: str, words: Sequence[str]) -> bool:
    return any(fnmatchcase(name, word) for word in words)


def _place(net: Net, name: str, origin: str) -> str:
    """The key that a file's tensor is for."""
    places = [k for k in net.keys if k == name or k.partition(".")[2] == name]
    if name in places:
        return name
    if len(places) != 1:
        where = f"{len(places)} places" if places else "no place"
        raise BadInput(
            f"{origin} holds {name!r}, which has {where} in this network; leave it out, for"
            f" instance start_without = '{_stage_pattern(name)}'"
        )
    return places[0]


def _stage_pattern(key: str) -> str:
    return f"{key.partition('.')[0]}.*"
