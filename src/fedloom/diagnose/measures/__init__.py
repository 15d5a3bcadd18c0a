"""The diagnostics of a run, each fed with one client after another."""

from fedloom.diagnose.measures.alignment import Alignment
from fedloom.diagnose.measures.base import Measure, Options
from fedloom.diagnose.measures.bias import ClassSeparation, FeatureDrift, FisherRatio, SetOverlap
from fedloom.diagnose.measures.description import DescriptionLength
from fedloom.diagnose.measures.pictures import Gaussians, JointEmbedding
from fedloom.diagnose.measures.predictions import CalibrationError, ClassifierBias, GlobalAccuracy

MEASURES: dict[str, type[Measure]] = {
    kind.name: kind
    for kind in (
        DescriptionLength,
        Alignment,
        ClassSeparation,
        FisherRatio,
        FeatureDrift,
        SetOverlap,
        ClassifierBias,
        GlobalAccuracy,
        CalibrationError,
        JointEmbedding,
        Gaussians,
    )
}

__all__ = ["MEASURES", "Measure", "Options"]
