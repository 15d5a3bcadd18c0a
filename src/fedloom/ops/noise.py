"""Noise that hides single values of what a client sends."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def perturb(value: Tensor, scale: float, weight: float, gen: Generator) -> Tensor:
    """value + weight * N(0, scale^2); `scale` is DBE's s and `weight` its q."""
    if not scale or not weight:
        return value
    noise = torch.randn(value.shape, generator=gen).to(value)
    return value.add(noise, alpha=scale * weight)
