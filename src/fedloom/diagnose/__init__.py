"""The diagnostics of a run: whose models and rows they look at, and what they find.

import fedloom as fl

for finding in fl.diagnose.study(fl.diagnose.Snapshots.of("runs/mine"), "mdl, cka"):
    print(finding.name, finding.layer, finding.result)
"""

from fedloom.diagnose.measure import Options
from fedloom.diagnose.recorder import diagnose
from fedloom.diagnose.samples import Sample, Samples
from fedloom.diagnose.snapshots import ClientView, ModelView, Snapshots
from fedloom.diagnose.study import study
from fedloom.record import Finding

__all__ = [
    "ClientView",
    "Finding",
    "ModelView",
    "Options",
    "Sample",
    "Samples",
    "Snapshots",
    "diagnose",
    "study",
]
