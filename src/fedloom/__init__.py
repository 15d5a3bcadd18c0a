"""fedloom: personalized federated learning in representation space.

    import fedloom as fl

    fl.run(fl.FedAvg() + fl.Proximal(mu=0.01), "digits", rounds=20).accuracy
    fl.compare(["local", "fedavg", fl.Ditto(lam=0.1)], "digits", seeds=[0, 1, 2])

Everything is imported when it is first used, so that `import fedloom` is quick.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "run": "fedloom.launch.start",
    "resume": "fedloom.launch.start",
    "Result": "fedloom.runs.result",
    "compare": "fedloom.launch.compare",
    "Comparison": "fedloom.launch.compare",
    "RunConfig": "fedloom.runs.config",
    "Watcher": "fedloom.runs.watcher",
    "Stop": "fedloom.runs.watcher",
    "RunView": "fedloom.runs.watcher",
    "load": "fedloom.data",
    "federate": "fedloom.data",
    "FederatedData": "fedloom.data",
    "Source": "fedloom.data",
    "Partition": "fedloom.data",
    "split": "fedloom.models",
    "build_model": "fedloom.models",
    "Net": "fedloom.core.net",
    "Method": "fedloom.core.method",
    "Term": "fedloom.core.term",
    "Opt": "fedloom.core.phase",
    "Phase": "fedloom.core.phase",
    "Protocol": "fedloom.core.protocol",
    "register": "fedloom.methods",
}
_PACKAGES = ("analysis", "diagnose", "loggers")


def __getattr__(name: str) -> Any:
    """Public names and packages, then every registered method and term by the name of its class."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _PACKAGES:
        return import_module(f"fedloom.{name}")
    if not name.startswith("_"):
        register = import_module("fedloom.methods").register
        for entry in map(register.__getitem__, register):
            if entry.__name__ == name:
                return entry
    raise AttributeError(f"module 'fedloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    register = import_module("fedloom.methods").register
    return sorted([*_HOME, *_PACKAGES, *(register[name].__name__ for name in register)])
