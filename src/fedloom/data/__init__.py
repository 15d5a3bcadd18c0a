"""Data sets, and their division over clients.

The names are in `__init__.pyi`; each is imported when it is first used, because most need torch.
"""

from fedloom.data.load import load as load  # at once, because its module has the same name
from fedloom.lazy import attach

__getattr__, __dir__ = attach(__name__)
