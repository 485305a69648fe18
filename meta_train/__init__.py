"""Meta-training of `theta`: truncation, gradient estimators and the outer loop."""

from typing import TYPE_CHECKING

from lopt import lazy

if TYPE_CHECKING:
    from meta_train.analysis.diagnostics import (
        candidates as candidates,
        diagnose as diagnose,
    )
    from meta_train.config.config import MetaTrainConfig as MetaTrainConfig
    from meta_train.config.config_file import read_config as read_config
    from meta_train.config.preset_configs import CONFIGS as CONFIGS, compose as compose
    from meta_train.core.inner_training import InnerTraining as InnerTraining
    from meta_train.core.objectives import (
        FinalLoss as FinalLoss,
        LateLoss as LateLoss,
        LogLoss as LogLoss,
    )
    from meta_train.core.truncation import Truncation as Truncation
    from meta_train.estimators import (
        ARTBP as ARTBP,
        ESTIMATORS as ESTIMATORS,
        PES as PES,
        RTRL as RTRL,
        UORO as UORO,
        AugmentedRandomSearch as AugmentedRandomSearch,
        Estimate as Estimate,
        FullBackprop as FullBackprop,
        FullES as FullES,
        GeneralizedPES as GeneralizedPES,
        GradientEstimator as GradientEstimator,
        GuidedES as GuidedES,
        NoiseReuseES as NoiseReuseES,
        PESAnalytic as PESAnalytic,
        Reparameterization as Reparameterization,
        TruncatedBackprop as TruncatedBackprop,
        TruncatedES as TruncatedES,
        register_estimator as register_estimator,
    )
    from meta_train.estimators.antithetic import (
        PairEstimator as PairEstimator,
        antithetic as antithetic,
        pair_sample as pair_sample,
    )
    from meta_train.estimators.episodic import EpisodeEstimator as EpisodeEstimator
    from meta_train.outer.outer_optimizer import (
        OUTER_OPTIMIZERS as OUTER_OPTIMIZERS,
        OuterAdam as OuterAdam,
        OuterAdamW as OuterAdamW,
        OuterLamb as OuterLamb,
        OuterOptimizer as OuterOptimizer,
        OuterSGD as OuterSGD,
    )
    from meta_train.outer.outer_state import OuterState as OuterState
    from meta_train.outer.trainer import Trainer as Trainer
    from meta_train.runtime.metrics_file import read_metrics as read_metrics
    from meta_train.runtime.run import (
        MetaTrainResult as MetaTrainResult,
        meta_train as meta_train,
    )

_EXPORTS = {
    "meta_train.analysis.diagnostics": ["candidates", "diagnose"],
    "meta_train.config.config": ["MetaTrainConfig"],
    "meta_train.config.config_file": ["read_config"],
    "meta_train.config.preset_configs": ["CONFIGS", "compose"],
    "meta_train.core.inner_training": ["InnerTraining"],
    "meta_train.core.objectives": ["FinalLoss", "LateLoss", "LogLoss"],
    "meta_train.core.truncation": ["Truncation"],
    "meta_train.estimators": [
        "ARTBP",
        "AugmentedRandomSearch",
        "ESTIMATORS",
        "Estimate",
        "FullBackprop",
        "FullES",
        "GeneralizedPES",
        "GradientEstimator",
        "GuidedES",
        "NoiseReuseES",
        "PES",
        "PESAnalytic",
        "RTRL",
        "Reparameterization",
        "TruncatedBackprop",
        "TruncatedES",
        "UORO",
        "register_estimator",
    ],
    "meta_train.estimators.antithetic": ["PairEstimator", "antithetic", "pair_sample"],
    "meta_train.estimators.episodic": ["EpisodeEstimator"],
    "meta_train.outer.outer_optimizer": [
        "OUTER_OPTIMIZERS",
        "OuterAdam",
        "OuterAdamW",
        "OuterLamb",
        "OuterOptimizer",
        "OuterSGD",
    ],
    "meta_train.outer.outer_state": ["OuterState"],
    "meta_train.outer.trainer": ["Trainer"],
    "meta_train.runtime.metrics_file": ["read_metrics"],
    "meta_train.runtime.run": ["MetaTrainResult", "meta_train"],
}
__getattr__, __dir__, __all__ = lazy.attach(__name__, _EXPORTS)
