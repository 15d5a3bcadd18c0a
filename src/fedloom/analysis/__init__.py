"""The papers' diagnostics as pure functions of features and predictions, and attacks on uploads.

    import fedloom as fl

    fl.analysis.linear_cka(x, y).value

`fedloom.diagnose` asks the diagnostics of a run, `benchmarks/leaks.py` the attacks.

The names are in `__init__.pyi`; each is imported when it is first used.
"""

from fedloom.lazy import attach

__getattr__, __dir__ = attach(__name__)
