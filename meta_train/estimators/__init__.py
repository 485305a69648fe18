"""Gradient estimators by name; a new one is one more line here."""

from meta_train.estimators.base import Estimate, GradientEstimator
from meta_train.estimators.full_es import FullES
from meta_train.estimators.pes import PES
from meta_train.estimators.truncated_backprop import TruncatedBackprop
from meta_train.estimators.truncated_es import TruncatedES

ESTIMATORS: dict[str, type[GradientEstimator]] = {
    "PES": PES,
    "TruncatedES": TruncatedES,
    "FullES": FullES,
    "TruncatedBackprop": TruncatedBackprop,
}

__all__ = [
    "ESTIMATORS",
    "PES",
    "Estimate",
    "FullES",
    "GradientEstimator",
    "TruncatedBackprop",
    "TruncatedES",
]
