"""The table and the folder that docs/advise.md looks at."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

rng = np.random.default_rng(0)
pd.DataFrame(
    {
        "age": rng.normal(size=90),
        "dose": rng.normal(size=90),
        "diagnosis": rng.choice(["ill", "well"], 90),
        "hospital": np.repeat(["Berlin", "Lyon", "Turin"], 30),
    }
).to_csv("patients.csv", index=False)
for domain in ("day", "night"):
    for kind in ("cat", "dog"):
        folder = Path("photos", domain, kind)
        folder.mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 255, size=(32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.jpg")
