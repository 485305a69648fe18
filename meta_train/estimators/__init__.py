"""Registry of gradient estimators.

To register one, add it to `ESTIMATORS`, or decorate its class with
`register_estimator` at run time.
"""

from typing import TypeVar

from lopt.registry import add_class
from meta_train.estimators.artbp import ARTBP
from meta_train.estimators.augmented_random_search import AugmentedRandomSearch
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
        AugmentedRandomSearch,
    )
}

Kind = TypeVar("Kind", bound=type[GradientEstimator])


def register_estimator(kind: Kind) -> Kind:
    """Register an estimator under its class name, as a class decorator.

    Run directories and `--estimator` then accept it in this process.

    Raises:
        UserError: If another class is registered under the same name.
    """
    return add_class(ESTIMATORS, kind)


__all__ = [
    "ARTBP",
    "ESTIMATORS",
    "PES",
    "RTRL",
    "UORO",
    "AugmentedRandomSearch",
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
    "register_estimator",
]
