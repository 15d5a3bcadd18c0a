"""Any encoder of Hugging Face's transformers, for images or text (extra `transformers`)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.errors import BadInput, needs_extra
from fedloom.models import models

PADDING = 0
"""Token id that fedloom's texts are padded with."""


class Features(nn.Module):
    """A vector per row: what the encoder itself pools, otherwise the mean over all positions that
    are no padding."""

    def __init__(self, encoder: nn.Module, text: bool) -> None:
        super().__init__()
        self.encoder, self.text = encoder, text

    def forward(self, x: Tensor) -> Tensor:
        if not self.text:
            # By `shape` and not `len`: a graph of it is for any number of rows.
            return _pooled(self.encoder(pixel_values=x), x.new_ones(x.shape[0], 1))
        # An empty text would leave attention nothing to look at.
        words = (x != PADDING).index_fill(1, torch.tensor([0], device=x.device), True).long()
        return _pooled(self.encoder(input_ids=x, attention_mask=words), words)


def _pooled(out: Any, mask: Tensor) -> Tensor:
    pooled: Tensor | None = getattr(out, "pooler_output", None)
    if pooled is not None:
        return pooled.flatten(1)
    last: Tensor = out.last_hidden_state
    if last.ndim == 4:  # [n, channels, height, width], of convolutions
        return last.mean((2, 3))
    weights = mask[..., None].to(last.dtype)
    return (last * weights).sum(1) / weights.expand(-1, last.shape[1], -1).sum(1)


@models
def transformers_encoder(
    shape: tuple[int, ...],
    classes: int,
    name: str = "vit",
    pretrained: bool = True,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    patch: int = 4,
    vocabulary: int = 0,
) -> Net:
    """An encoder of Hugging Face's transformers as body, and a new linear head.

    Args:
        name: a local folder that `save_pretrained` wrote (`'./my_encoder'`, with a slash), a model
            of the hub (`'google/vit-base-patch16-224'`), or a kind of network (`vit`, `bert`),
            which is built anew for the data.
        pretrained: begin with the weights of the folder or the hub; without, by its configuration
            alone, with weights drawn at random.
        width: of a kind that is built anew, as `layers`, `heads` and, for images, `patch`.
        vocabulary: number of tokens, set by the data where they are text. A pretrained encoder
            wants the ids that its own tokenizer gives, 0 for padding.
    """
    text = len(shape) == 1 and vocabulary > 0
    if not text and len(shape) != 3:
        raise BadInput(
            f"transformers_encoder takes images or token ids, not inputs of shape {shape}; use mlp"
        )
    with needs_extra("transformers"):
        import transformers
    own = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    own |= {"intermediate_size": 4 * width}
    if text:
        own |= {"vocab_size": vocabulary, "max_position_embeddings": shape[0] + 2}
    else:
        own |= {"image_size": shape[1], "num_channels": shape[0], "patch_size": patch}
    encoder = _create(transformers, name, pretrained, own)
    _check_vocabulary(encoder, name, vocabulary)
    body = Features(encoder, text)
    net = Net(shape, body=body, head=nn.Linear(_feature_width(body, name, shape, text), classes))
    if text:
        net.input_dtype = torch.int64
    return net


def _create(transformers: ModuleType, name: str, pretrained: bool, own: dict[str, Any]) -> Any:
    configurations, networks = transformers.AutoConfig, transformers.AutoModel
    if name in transformers.CONFIG_MAPPING:
        return networks.from_config(configurations.for_model(name, **own))
    if "/" not in name:  # a site's policy tells places of names by the slash
        raise BadInput(
            f"transformers has no kind of network {name!r}; name a folder with a slash"
            f" ('./{name}'), or a model of the hub by its owner ('OWNER/{name}')"
        )
    is_folder = Path(name).is_dir()
    try:
        if pretrained:
            return networks.from_pretrained(name, local_files_only=is_folder)
        return networks.from_config(configurations.from_pretrained(name))
    except Exception as e:  # the hub's clients raise errors of many libraries
        first_line = str(e).partition("\n")[0]
        place = "the folder" if is_folder else "the hub"
        raise BadInput(
            f"transformers cannot get {name!r} from {place} ({first_line}); save the model with"
            " save_pretrained and give that folder, as name='./FOLDER', or name a kind of network,"
            " as name=vit"
        ) from None


def _check_vocabulary(encoder: Any, name: str, vocabulary: int) -> None:
    known = getattr(encoder.config, "vocab_size", vocabulary)
    if vocabulary > known:
        raise BadInput(
            f"the data have {vocabulary} token ids, and {name!r} knows {known}; give rows of the"
            " ids that its own tokenizer makes"
        )


def _feature_width(body: nn.Module, name: str, shape: tuple[int, ...], text: bool) -> int:
    rows = torch.ones(2, *shape, dtype=torch.int64) if text else torch.zeros(2, *shape)
    body.eval()
    try:
        with torch.no_grad():
            return int(body(rows).shape[1])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as e:
        first_line = str(e).partition("\n")[0]
        raise BadInput(
            f"the encoder {name!r} does not take inputs of shape {shape} ({first_line}); resize the"
            " images, cut the texts, or choose another"
        ) from None
    finally:
        body.train()
