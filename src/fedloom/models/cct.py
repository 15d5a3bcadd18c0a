"""Compact Convolutional Transformer (Hassani et al. 2021), CCT-7/3x1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.models import models
from fedloom.models.layers import require_image, width_of

_LAYERS, _HEADS, _DIM, _MLP = 7, 4, 256, 512


class _Linear(nn.Linear):
    """Starts from a truncated normal of deviation 0.02, bias zero, as transformers do."""

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class _TokenConv(nn.Conv2d):
    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight)


class Position(nn.Module):
    """A learned vector added at each position."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(tokens, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Attention(nn.Module):
    """Multi-head self-attention without bias in the three input projections."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = _Linear(dim, 3 * dim, bias=False)
        self.proj = _Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        parts = self.qkv(x).view(n, tokens, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [n, heads, tokens, dim / heads] each
        dropout = self.dropout if self.training else 0.0
        z = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        out: Tensor = self.proj(z.transpose(1, 2).reshape(n, tokens, dim))
        return out


class StochasticDepth(nn.Module):
    """In training, a residual branch is left out for a sample with this probability."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0.0:
            return x
        keep = 1.0 - self.probability
        mask = torch.empty(len(x), 1, 1, dtype=x.dtype, device=x.device).bernoulli_(keep)
        return x * mask / keep


class Layer(nn.Module):
    """One encoder layer.

    As in CCT's own code, whose `cct_7_3x1_32_c100` FedBR names, the second normalisation acts on
    the sum itself, not only on the branch of the perceptron.
    """

    def __init__(self, dim: int, heads: int, mlp: int, dropout: float, depth: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, dropout)
        self.mlp = nn.Sequential(_Linear(dim, mlp), nn.GELU(), _Linear(mlp, dim))
        self.drop = StochasticDepth(depth)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.drop(self.attention(self.norm1(x))))
        out: Tensor = x + self.drop(self.mlp(x))
        return out


class SequencePool(nn.Module):
    """A learned weighted mean over the tokens, instead of a class token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = _Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.score(x).softmax(dim=1)  # [n, tokens, 1]
        return (weights * x).sum(dim=1)


class _Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)  # [n, dim, h, w] -> [n, h * w, dim]


@models
def cct7_3x1(shape: tuple[int, ...], classes: int, dropout: float = 0.1, depth: float = 0.1) -> Net:
    """FedBR's network for CIFAR-100: CCT-7/3x1, feature of 256.

    One 3x3 convolution with pooling makes the tokens; 7 layers of 4 heads and dimension 256, a
    perceptron of 512; attention dropout and stochastic depth (rising to it over the layers) 0.1.

    Deviations: FedBR's Table 7 gives 22.4 million parameters, which is the size of CCT-14/7x2; the
    network that its text names, cct_7_3x1_32_c100, has these 3.8 million.
    """
    require_image("cct7_3x1", shape, least=2, instead="mlp")
    conv = _TokenConv(shape[0], _DIM, 3, padding=1, bias=False)
    tokenizer = nn.Sequential(conv, nn.MaxPool2d(3, 2, padding=1), nn.ReLU(), _Tokens())
    tokens = width_of(tokenizer, shape) // _DIM
    layers = [Layer(_DIM, _HEADS, _MLP, dropout, depth * i / (_LAYERS - 1)) for i in range(_LAYERS)]
    body = nn.Sequential(
        tokenizer, Position(tokens, _DIM), *layers, nn.LayerNorm(_DIM), SequencePool(_DIM)
    )
    return Net(shape, body=body, head=nn.Linear(_DIM, classes))
