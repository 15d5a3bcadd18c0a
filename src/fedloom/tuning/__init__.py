"""Hyper-parameters by successive halving, scored on validation rows: `fedloom tune`."""
