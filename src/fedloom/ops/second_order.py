"""What a second derivative needs of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Attention inside is computed in steps that have second derivatives; torch's fused kernels
    have none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # here: few processes need it

    with sdpa_kernel(SDPBackend.MATH):
        yield
