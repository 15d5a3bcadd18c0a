"""fedloom: personalized federated learning in representation space.

    import fedloom as fl

    fl.run(fl.FedAvg() + fl.Proximal(mu=0.01), "digits", rounds=20).accuracy
    fl.compare(["local", "fedavg", fl.Ditto(lam=0.1)], "digits", seeds=[0, 1, 2])

The names are in `__init__.pyi`. Everything is imported when it is first used, so that
`import fedloom` is quick.
"""

from fedloom.lazy import attach

__getattr__, __dir__ = attach(__name__)
