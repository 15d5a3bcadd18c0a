"""The tables that docs/tasks.md names."""

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
measured = pd.DataFrame(rng.normal(size=(120, 4)), columns=["a", "b", "c", "d"])
place = np.repeat(["Berlin", "Lyon", "Turin"], 40)
outcome = (measured.a + rng.normal(size=120) > 0).astype(int)
measured.assign(outcome=outcome, hospital=place).to_csv("patients.csv", index=False)
measured.assign(age=50 + 9 * measured.b, dose=2 + measured.c, site=place).to_csv(
    "scans.csv", index=False
)
visits = rng.poisson(np.exp(measured.d / 2)).astype(float)
measured.assign(y=visits, hospital=place).to_csv("visits.csv", index=False)
