"""fastText for token indices: the mean of word vectors and two linear layers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import models

PADDING = 0
"""The index that fills a text up to its fixed length; its vector is zero and is not trained."""


class MeanEmbedding(nn.Module):
    """Word vectors averaged over the positions of a text: [n, length] -> [n, width]."""

    def __init__(self, vocabulary: int, width: int, over: Literal["positions", "words"]) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.over = over

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.table(tokens)
        if self.over == "positions":
            return vectors.mean(dim=1)
        words = (tokens != PADDING).sum(dim=1, keepdim=True).clamp(min=1)
        return vectors.sum(dim=1) / words


@models
def fasttext(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 98635,
    width: int = 32,
    mean: Literal["positions", "words"] = "positions",
    published: bool = False,
) -> Net:
    """DBE's network for AG News: word vectors of 32, their mean, a linear layer, the head.

    Args:
        vocabulary: number of tokens, set by the data where they are text; 0 is padding.
        mean: over all `positions` of the padded text, as published, or over its `words` alone.
        published: the published code's log-softmax, which lands on the representation once the
            head is split off. The paper's AG News rows were most likely made with it.

    >>> net = fasttext((200,), 4, vocabulary=1000)
    >>> net.shape_of(net.feature)
    torch.Size([32])
    """
    if len(shape) != 1:
        raise BadInput(
            f"fasttext takes texts as token indices [length], not inputs of shape {shape}"
        )
    if mean not in ("positions", "words"):
        raise BadInput(f"fasttext has mean=positions or mean=words, not {mean!r}")
    body = nn.Sequential(MeanEmbedding(vocabulary, width, mean), nn.Linear(width, width))
    if published:
        body.append(nn.LogSoftmax(dim=1))
    net = Net(shape, body=body, head=nn.Linear(width, classes))
    net.input_dtype = torch.int64
    return net
