"""Rows of members and of a new site, for docs/adapt.md."""

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
x = (digits.images[:, None] * 15).astype(np.uint8)
order = np.random.default_rng(0).permutation(len(x))
late, members = order[:200], order[200:]
np.savez("members.npz", x=x[members], y=digits.target[members])
late = late[np.isin(digits.target[late], [3, 5, 8, 9])][:80]
np.savez("new_site.npz", x=x[late], y=digits.target[late])
