"""The tables, folders and arrays that docs/your-data.md takes for granted."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

rng = np.random.default_rng(0)


def rows(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(count, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


x, y = rows(300)
x_berlin, y_berlin = rows()
x_lyon, y_lyon = rows()
x_turin, y_turin = rows()
pd.DataFrame(
    {
        "age": x[:90, 0],
        "dose": x[:90, 1],
        "diagnosis": np.where(y[:90], "ill", "well"),
        "hospital": np.repeat(["Berlin", "Lyon", "Turin"], 30),
        "scanner": np.tile([1, 2], 45),
    }
).to_csv("patients.csv", index=False)
np.savez("windows.npz", x=x, y=y, user=np.arange(300) % 5)
for year in (2020, 2021):
    np.savez(f"hospitals-{year}.npz", x=x, y=y, user=np.arange(300) % 5)
for domain in ("day", "night"):
    for kind in ("cat", "dog"):
        folder = Path("photos", domain, kind)
        folder.mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 255, size=(32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.jpg")
