"""How good are the predictions? Pure functions of tensors, each of which answers with one number.

Every function takes tensors or NumPy arrays and returns a 0-d tensor on their device, in the widest of their floating
point types. Each call reads back from the device once, to check its arguments (twice where `ignore_index` is given).
"""

from plausible.metrics.calibration import CalibrationCurve, ace, calibration_curve, ece
from plausible.metrics.classification import accuracy, brier, nll
from plausible.metrics.comparison import agreement, total_variation
from plausible.metrics.detection import aupr_ood, auroc_ood, fpr95
from plausible.metrics.regression import crps, interval_score, picp, rmse
from plausible.metrics.selective import aurc, auroc_error

__all__ = [
    "CalibrationCurve",
    "accuracy",
    "ace",
    "agreement",
    "aupr_ood",
    "aurc",
    "auroc_error",
    "auroc_ood",
    "brier",
    "calibration_curve",
    "crps",
    "ece",
    "fpr95",
    "interval_score",
    "nll",
    "picp",
    "rmse",
    "total_variation",
]
