"""The five papers' methods as the benchmarks run them, beside what they build on."""

METHODS = {
    "FedAvg": "fedavg",
    "DBE": "fedavg + dbe",
    "FedBR": "fedavg + fedbr",
    "DualFed": "dualfed",
    "FedCR": "fedcr",
    "FedPAC": "fedpac",
}
"""What tables call a method -> its expression."""
