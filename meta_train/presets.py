"""Runs to start from, and how to put other parts into them by name."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lopt.describe import convert
from lopt.errors import UserError, find
from lopt.mlp import PerParameterMLP
from lopt.registry import OPTIMIZERS
from lopt.schedules import ScheduledSGD
from meta_train.config import MetaTrainConfig
from meta_train.estimators import ESTIMATORS, PES
from meta_train.inner_training import InnerTraining
from meta_train.outer_optimizer import OuterAdam
from meta_train.truncation import Truncation
from tasks.base import Task
from tasks.influence_balancing import InfluenceBalancing
from tasks.mlp import MLPClassification
from tasks.quadratic import RandomQuadratic
from tasks.toy_regression import ToyRegression
from tasks.zoo import ZOO

# Small beats large on a budget of minutes.
_SMALL_MLP = PerParameterMLP(width=8, second_moment_decays=(0.999,))


def compose(
    config: MetaTrainConfig,
    *,
    estimator: str | None = None,
    optimizer: str | None = None,
    tasks: Sequence[str] = (),
) -> MetaTrainConfig:
    """Returns `config` with parts replaced by name; fields in common are kept."""
    parts: dict[str, Any] = {}
    if estimator:
        kind = find("estimator", estimator, ESTIMATORS)
        parts["estimator"] = convert(config.estimator, kind)
    if optimizer or tasks:
        inner = [s for s in config.systems if isinstance(s, InnerTraining)]
        ours = inner[0].optimizer if inner else _SMALL_MLP
        if optimizer:
            ours = convert(ours, find("optimizer", optimizer, OPTIMIZERS))
        problems = [find("task", name, ZOO).problem for name in tasks]
        parts["systems"] = tuple(
            InnerTraining(p, ours) if isinstance(p, Task) else p
            for p in problems or [s.task for s in inner] or config.systems
        )
    try:
        return dataclasses.replace(config, **parts)
    except ValueError as error:
        raise UserError(str(error)) from error


PRESETS: dict[str, tuple[str, MetaTrainConfig]] = {
    "digits-mlp": (
        "Learn a per-parameter MLP on a small digits classifier; minutes on a laptop.",
        MetaTrainConfig(
            systems=(InnerTraining(MLPClassification(), _SMALL_MLP),),
            estimator=PES(Truncation(length=10, horizon=200), num_pairs=32, std=0.03),
            outer_optimizer=OuterAdam(learning_rate=2e-2, schedule="cosine"),
            num_outer_steps=2_000,
            run_dir=Path("runs/digits-mlp"),
        ),
    ),
    "tables-mlp": (
        "The same optimizer on two tasks at once, wine and breast cancer; minutes.",
        MetaTrainConfig(
            systems=(
                InnerTraining(MLPClassification("wine"), _SMALL_MLP),
                InnerTraining(MLPClassification("breast-cancer"), _SMALL_MLP),
            ),
            estimator=PES(Truncation(length=10, horizon=200), num_pairs=16, std=0.03),
            outer_optimizer=OuterAdam(learning_rate=2e-2, schedule="cosine"),
            run_dir=Path("runs/tables-mlp"),
        ),
    ),
    "quadratic-schedule": (
        "Learn a learning-rate schedule on a noisy quadratic; seconds on a laptop.",
        MetaTrainConfig(
            systems=(InnerTraining(RandomQuadratic(), ScheduledSGD()),),
            estimator=PES(Truncation(length=10, horizon=100), num_pairs=32, std=0.1),
            outer_optimizer=OuterAdam(learning_rate=1e-2),
            run_dir=Path("runs/quadratic-schedule"),
        ),
    ),
    "toy-regression": (
        "The PES paper's toy 2D regression: a schedule past many local minima.",
        MetaTrainConfig(
            systems=(InnerTraining(ToyRegression(), ScheduledSGD()),),
            estimator=PES(Truncation(length=10, horizon=100), num_pairs=50, std=1.0),
            outer_optimizer=OuterAdam(learning_rate=1e-2),
            num_outer_steps=5_000,
            log_every_steps=100,
            run_dir=Path("runs/toy-regression"),
        ),
    ),
    "influence-balancing": (
        "The PES paper's influence balancing: short windows have the wrong sign.",
        MetaTrainConfig(
            systems=(InfluenceBalancing(),),
            estimator=PES(Truncation(length=1, horizon=500), num_pairs=500, std=0.1),
            log_every_steps=100,
            run_dir=Path("runs/influence-balancing"),
        ),
    ),
}
