"""The diagnostics of a run: whose models and rows they look at, and what they find.

import fedloom as fl

for finding in fl.diagnose.study(fl.diagnose.Snapshots.of("runs/mine"), "cka"):
    print(finding.layer, fl.diagnose.read(finding).result.mean)
"""

from fedloom.diagnose.diagnostic import Reading
from fedloom.diagnose.measure import Options
from fedloom.diagnose.recorder import diagnose
from fedloom.diagnose.registry import read
from fedloom.diagnose.samples import Sample, Samples
from fedloom.diagnose.snapshots import ClientView, ModelView, Snapshots
from fedloom.diagnose.study import study
from fedloom.record import Finding

__all__ = [
    "ClientView",
    "Finding",
    "ModelView",
    "Options",
    "Reading",
    "Sample",
    "Samples",
    "Snapshots",
    "diagnose",
    "read",
    "study",
]
