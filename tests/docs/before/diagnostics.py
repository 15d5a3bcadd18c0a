"""The arrays that docs/diagnostics.md names."""

import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(30, 5))
y = x @ rng.normal(size=(5, 4))
differences = rng.normal(size=(3, 8))
