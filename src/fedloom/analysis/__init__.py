"""The papers' diagnostics as pure functions of features and predictions.

    import fedloom as fl

    fl.analysis.linear_cka(x, y).value

`fedloom.diagnose` asks them of a run.

The names are in `__init__.pyi`; each is imported when it is first used.
"""

from fedloom.lazy import attach

__getattr__, __dir__ = attach(__name__)
