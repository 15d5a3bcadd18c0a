"""Contrastive losses on representations."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def pair_contrast(z: Tensor, positive: Tensor, negative: Tensor, tau: float) -> Tensor:
    """-log e^{cos(z,p)/tau} / (e^{cos(z,p)/tau} + e^{cos(z,n)/tau}), mean over the batch [n, d].

    >>> import torch
    >>> round(float(pair_contrast(torch.eye(2), torch.eye(2), torch.eye(2), tau=0.5)), 6)
    0.693147
    """
    similar = F.cosine_similarity(z, positive), F.cosine_similarity(z, negative)
    return F.softplus((similar[1] - similar[0]) / tau).mean()
