"""scikit-learn estimators: a posterior behind `fit` and `predict`."""

from .classifier import BayesianClassifier
from .regressor import BayesianRegressor

__all__ = ["BayesianClassifier", "BayesianRegressor"]
