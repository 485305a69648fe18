"""Jobs that experiments share: meta-training runs and surfaces."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from evaluation.paper.experiment import Job
from meta_train.analysis.surface import meta_surface
from meta_train.config.config import MetaTrainConfig
from meta_train.estimators import PES, GradientEstimator, TruncatedES
from meta_train.estimators.antithetic import PairEstimator
from meta_train.outer.outer_optimizer import OuterOptimizer
from tasks.base import UnrolledSystem

ES_AND_PES: dict[str, type[PairEstimator]] = {"PES": PES, "ES": TruncatedES}
"""The estimators that most experiments compare, by name of the method."""


def training(
    system: UnrolledSystem,
    estimator: GradientEstimator,
    outer_optimizer: OuterOptimizer,
    num_outer_steps: int,
    num_points: int = 50,
    num_evaluation_runs: int = 1,
    **fields: Any,
) -> MetaTrainConfig:
    """Configure a run that is evaluated and logged at `num_points` points.

    Runs of an experiment may diverge, which is a result: they never stop early.
    """
    every = max(1, num_outer_steps // num_points)
    num_outer_steps -= num_outer_steps % every  # so that the last theta is evaluated
    return MetaTrainConfig(
        systems=(system,),
        estimator=estimator,
        outer_optimizer=outer_optimizer,
        num_outer_steps=num_outer_steps,
        log_every_steps=every,
        evaluate_every_steps=every,
        num_evaluation_runs=num_evaluation_runs,
        max_faulty_updates=0,
        run_dir=Path("unused"),
        wandb="off",
        **fields,
    )


def surface(
    name: str,
    system: UnrolledSystem,
    axes: Sequence[Float[np.ndarray, " n"]],
    horizon: int,
    num_runs: int = 1,
) -> Job:
    """Create the job that computes a meta-objective surface.

    Its result has the keys ``axes`` and ``losses``.
    """

    def compute():
        key = jax.random.key(0)
        data, theta = system.load(), system.init_theta(key)
        losses = meta_surface(system, data, theta, axes, horizon, num_runs, key)
        return {"axes": [axis.tolist() for axis in axes], "losses": losses.tolist()}

    return Job(name, compute)


def with_estimators(
    config: MetaTrainConfig, estimators: Mapping[str, GradientEstimator]
) -> dict[str, MetaTrainConfig]:
    """Configure one run for each estimator, by name."""
    return {
        name: dataclasses.replace(config, estimator=estimator)
        for name, estimator in estimators.items()
    }
