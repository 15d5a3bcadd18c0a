"""Pictures to predict, for docs/use-a-model.md."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

Path("images").mkdir()
for i, image in enumerate(load_digits().images[:3]):
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(f"images/{i}.png")
