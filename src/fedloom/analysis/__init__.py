"""The papers' diagnostics as pure functions of features and predictions.

    import fedloom as fl

    fl.analysis.linear_cka(x, y).value

`fedloom.diagnose` asks them of a run.

Everything is imported when it is first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_HOME = {
    name: module
    for module, names in {
        "calibration": "Calibration ClientCalibration Reliability calibration"
        " calibration_of_clients",
        "cka": "Alignment ClientAlignment cka_between_clients linear_cka",
        "classifier_bias": "ClassifierBias PriorAgreement classifier_bias prior_agreement",
        "code_length": "CodeLength",
        "cost": "ClientPace Pace Sent Sizes client_pace dualfed_parameters dualfed_table8 pace"
        " sent_to_target sizes",
        "drift": "Drift feature_drift",
        "ellipses": "ClassEllipses class_ellipses",
        "ensemble": "EnsembleCalibration ensemble_calibration logit_average probability_average",
        "fairness": "Fairness fairness lowest_by_chance noise_variance",
        "fisher": "ClassFisher Discriminant Fisher Moments discriminant fisher fisher_to_global"
        " fisher_within_classes",
        "gain": "Gain Trend gain trend",
        "mdl": "mdl_online mdl_reprieve mdl_table",
        "mlp_probe": "MLPProbe",
        "neighbours": "Purity neighbour_purity purity_within_classes silhouette",
        "overlap": "CentroidRatio Collapse Overlap centroid_ratio feature_collapse set_overlap",
        "ridge_probe": "RidgeProbe shared_components",
        "separation": "Separation class_separation",
        "significance": "Estimate Exact Paired bootstrap_interval compare disagreements holm"
        " mcnemar seed_means signed_rank two_way",
        "targets": "Best best_rounds height_by_chance median_rounds rounds_to_target speed_up"
        " worst_client",
        "temperature": "Temperature fit_temperature tempered",
        "tsne": "Embedding Panel Settings joint_tsne pick_rows",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps a submodule from standing where the function of its name belongs."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(_HOME)
