"""Registry of gradient estimators; add a new estimator to `ESTIMATORS`."""

from meta_train.estimators.artbp import ARTBP
from meta_train.estimators.base import Estimate, GradientEstimator
from meta_train.estimators.full_backprop import FullBackprop
from meta_train.estimators.full_es import FullES
from meta_train.estimators.generalized_pes import GeneralizedPES
from meta_train.estimators.guided_es import GuidedES
from meta_train.estimators.noise_reuse_es import NoiseReuseES
from meta_train.estimators.pes import PES
from meta_train.estimators.pes_analytic import PESAnalytic
from meta_train.estimators.reparameterization import Reparameterization
from meta_train.estimators.rtrl import RTRL
from meta_train.estimators.truncated_backprop import TruncatedBackprop
from meta_train.estimators.truncated_es import TruncatedES
from meta_train.estimators.uoro import UORO

ESTIMATORS: dict[str, type[GradientEstimator]] = {
    kind.__name__: kind
    for kind in (
        PES,
        NoiseReuseES,
        TruncatedBackprop,
        TruncatedES,
        FullES,
        UORO,
        PESAnalytic,
        FullBackprop,
        GeneralizedPES,
        ARTBP,
        Reparameterization,
        GuidedES,
        RTRL,
    )
}

__all__ = [
    "ARTBP",
    "ESTIMATORS",
    "PES",
    "RTRL",
    "UORO",
    "Estimate",
    "FullBackprop",
    "FullES",
    "GeneralizedPES",
    "GradientEstimator",
    "GuidedES",
    "NoiseReuseES",
    "PESAnalytic",
    "Reparameterization",
    "TruncatedBackprop",
    "TruncatedES",
]
