"""The run whose ledger docs/distributed.md shows."""

import fedloom as fl

fl.run("fedper", clients=4, rounds=1, out="runs/first")
