"""Contrastive losses on representations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pair_contrast(
    z: Tensor,
    positive: Tensor,
    negative: Tensor,
    scale: float,
    negative_scale: float | None = None,
) -> Tensor:
    """-log e^{s cos(z,p)} / (e^{s cos(z,p)} + e^{s' cos(z,n)}), mean over the batch [n, d].

    A scale is one over a temperature; `negative_scale` s' defaults to s.

    >>> z = torch.eye(2)
    >>> round(float(pair_contrast(z, z, z, scale=2.0)), 6)
    0.693147
    """
    if negative_scale is None:
        negative_scale = scale
    pull = F.cosine_similarity(z, positive)
    push = F.cosine_similarity(z, negative)
    return F.softplus(negative_scale * push - scale * pull).mean()


def supervised_contrast(u: Tensor, y: Tensor, tau: float) -> Tensor:
    """SupCon over one batch [n, d], with cosine similarity and one view of every sample.

    Every sample is an anchor once: the softmax is taken over its similarities to all other samples,
    and -log of it is averaged over the others of its class. An anchor alone in its class
    contributes 0.

    >>> u = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(float(supervised_contrast(u, torch.tensor([0, 0, 1]), tau=1.0)), 6)
    0.208841
    """
    u = F.normalize(u, dim=1)
    itself = torch.eye(len(y), dtype=torch.bool, device=u.device)
    log_share = (u @ u.T / tau).masked_fill(itself, float("-inf")).log_softmax(1)
    same = (y[:, None] == y[None]) & ~itself
    per_anchor = log_share.masked_fill(~same, 0.0).sum(1) / same.sum(1).clamp_min(1)
    return -per_anchor.mean()
