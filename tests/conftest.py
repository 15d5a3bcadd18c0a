"""One thread, as in a run: the bytes of a sum depend on how many threads share it."""

from __future__ import annotations

import torch

torch.set_num_threads(1)

collect_ignore = ["own_code"]
"""Files that tests give to processes of their own: importing them here would register them."""
