"""Initial weights from a local safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom.errors import BadInput


def load_weights(
    path: str | Path, body: nn.Module, head: nn.Linear, heads: tuple[str, ...]
) -> None:
    """Fills body and head from a whole network's state dict, whose last layers are `heads`.

    The head takes the one of its own shape, if there is one: a classifier for other classes is
    passed over. Anything else that does not fit is an error, because a half-loaded encoder trains
    without complaint and worse.
    """
    tensors = _read(Path(path))
    prefixes = tuple(f"{name}." for name in heads)
    rest = {k: v for k, v in tensors.items() if not k.startswith(prefixes)}
    _check(path, rest, body.state_dict())
    body.load_state_dict(rest, strict=False)
    shapes = {k: v.shape for k, v in head.state_dict().items()}
    for prefix in prefixes:
        last = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        if {k: v.shape for k, v in last.items()} == shapes:
            head.load_state_dict(last)
            return


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise BadInput(f"there is no weights file {str(path)!r}")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as e:
        raise BadInput(
            f"{str(path)!r} is not a safetensors file ({e}); other formats are not read, "
            f"convert it with safetensors.torch.save_file"
        ) from None
    return tensors


def _check(path: str | Path, saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for key, value in wanted.items():
        if key in saved and saved[key].shape != value.shape:
            raise BadInput(
                f"{str(path)!r}: {key} has shape {tuple(saved[key].shape)}, this network needs "
                f"{tuple(value.shape)}; check the channels of the data and the model's options"
            )
    # The counter is absent from files of older torch versions and plays no part in eval mode.
    missing = [k for k in wanted if k not in saved and not k.endswith("num_batches_tracked")]
    unknown = [k for k in saved if k not in wanted]
    if missing or unknown:
        raise BadInput(
            f"{str(path)!r} holds another network: {len(missing)} tensors are missing"
            f"{f' (such as {missing[0]})' if missing else ''}, {len(unknown)} have no place here"
            f"{f' (such as {unknown[0]})' if unknown else ''}"
        )
