"""The diagnostics of a run, each fed with one client after another."""

from fedloom.analysis.measures.alignment import Alignment
from fedloom.analysis.measures.base import Measure, Options
from fedloom.analysis.measures.bias import ClassSeparation, FeatureDrift, FisherRatio, SetOverlap
from fedloom.analysis.measures.description import DescriptionLength
from fedloom.analysis.measures.pictures import Gaussians, JointEmbedding
from fedloom.analysis.measures.predictions import CalibrationError, ClassifierBias, GlobalAccuracy

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
