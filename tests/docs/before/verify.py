"""The run that docs/verify.md checks."""

import fedloom as fl

fl.run("fedper", clients=4, rounds=15, out="runs/first")
