"""Configurations of the presets, and their composition from parts by name."""

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lopt.errors import UserError, lookup
from lopt.files.dataclass_json import convert
from lopt.optimizers.learned_muon import LearnedMuon
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from lopt.registry import OPTIMIZERS
from meta_train.config.config import MetaTrainConfig
from meta_train.core.inner_training import InnerTraining
from meta_train.core.measures import Measure
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS, PES
from meta_train.outer.outer_optimizer import OUTER_OPTIMIZERS, OuterAdam
from tasks.base import Family, ParameterizedFamily
from tasks.families.augmentation import Augmentation
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import RandomQuadratic
from tasks.synthetic.toy_regression import ToyRegression
from tasks.systems.influence_balancing import InfluenceBalancing
from tasks.systems.swimmer import Swimmer
from tasks.zoo import AUGMENTATIONS, ZOO

# With a budget of minutes, a small network meta-trains better than a large one.
_SMALL_MLP = PerParameterMLP(width=8, second_moment_decays=(0.999,))


def without_preset(tasks: Sequence[str]) -> MetaTrainConfig:
    """Configuration for named tasks, without a preset: that of `demo` for longer.

    Systems other than inner training have losses of any sign, without a logarithm, and
    are not trained by an optimizer.
    """
    problems = [lookup("task", name, ZOO).problem for name in tasks]
    is_inner = all(isinstance(problem, Family) for problem in problems)
    return dataclasses.replace(
        CONFIGS["demo"],
        objective=CONFIGS["demo"].objective if is_inner else "mean",
        num_outer_steps=1_000,
        evaluate_every_steps=100,
        run_dir=Path("runs") / tasks[0],
    )


def compose(
    config: MetaTrainConfig,
    *,
    estimator: str | None = None,
    optimizer: str | None = None,
    outer_optimizer: str | None = None,
    tasks: Sequence[str] = (),
    augment: Sequence[str] = (),
    measure: Measure | None = None,
) -> MetaTrainConfig:
    """Replace parts of `config` by name.

    A new estimator or outer optimizer keeps the fields that it has in common with the
    old one, except for the clipping threshold. A new learned optimizer has its own
    defaults: a width means something else in every architecture.
    """
    parts: dict[str, Any] = {}
    if estimator:
        kind = lookup("estimator", estimator, ESTIMATORS)
        parts["estimator"] = convert(config.estimator, kind)
    if outer_optimizer:
        kind = lookup("outer optimizer", outer_optimizer, OUTER_OPTIMIZERS)
        parts["outer_optimizer"] = convert(
            config.outer_optimizer, kind, clip=kind().clip
        )
    if tasks:
        parts["system_weights"] = ()  # those of the preset belong to its own tasks
    if optimizer or tasks or augment or measure:
        inner = [s for s in config.systems if isinstance(s, InnerTraining)]
        ours = inner[0].optimizer if inner else _SMALL_MLP
        if optimizer:
            ours = lookup("optimizer", optimizer, OPTIMIZERS)()
        problems = [lookup("task", name, ZOO).problem for name in tasks]
        wrappers = [lookup("augmentation", name, AUGMENTATIONS) for name in augment]
        shared = measure or (inner[0].measure if inner else "train-loss")
        try:
            parts["systems"] = tuple(
                InnerTraining(_wrapped(p, wrappers), ours, shared)
                if isinstance(p, Family)
                else p
                for p in problems or [s.task for s in inner] or config.systems
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        if not any(isinstance(s, InnerTraining) for s in parts["systems"]):
            flags = {"optimizer": optimizer, "augment": augment, "measure": measure}
            given = ", ".join(f"--{name}" for name, value in flags.items() if value)
            if given:
                raise UserError(
                    f"{given} must be given systems that train a learned optimizer; "
                    f"{type(parts['systems'][0]).__name__} has none. Try --tasks "
                    "digits-mlp."
                )
    try:
        return dataclasses.replace(config, **parts)
    except ValueError as error:
        raise UserError(str(error)) from error


def _wrapped(task: Family, wrappers: Sequence[type[Augmentation]]) -> Family:
    if wrappers and isinstance(task, ParameterizedFamily):
        raise UserError(
            f"--augment must be given tasks that theta has no part of; got "
            f"{type(task).__name__}. Try another task, or no --augment."
        )
    for wrapper in wrappers:
        needed = typing.get_type_hints(wrapper)["task"]
        if not isinstance(task, needed):
            raise UserError(
                f"{wrapper.__name__} must be put around a {needed.__name__}, before "
                f"others; got {type(task).__name__}. Try another order of --augment."
            )
        task = wrapper(task)
    return task


def _mixture(*names: str) -> tuple[InnerTraining, ...]:
    """Inner training of zoo tasks by `LearnedMuon`."""
    problems = [ZOO[name].problem for name in names]
    return tuple(
        InnerTraining(problem, LearnedMuon())
        for problem in problems
        if isinstance(problem, Family)
    )


CONFIGS: dict[str, MetaTrainConfig] = {
    "general": MetaTrainConfig(
        systems=_mixture(
            "digits-mlp-batches",
            "digits-mlp-deep-tanh",
            "digits-classes-scaled",
            "digits-autoencoder-batches",
            "wine-mlp-deep",
            "diabetes-mlp-batches",
            "letters-lstm-small",
            "characters-transformer-small",
            "diabetes-linear",
            "quadratics",
            "teacher-wide",
            "teacher-deep",
        ),
        # Tasks whose loss cannot approach zero have smaller log losses to gain.
        system_weights=(1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 2.0),
        estimator=PES(
            Truncation(length=20, horizon=800, min_horizon=40),
            num_pairs=16,
            std=0.1,
            normalize="estimate",
        ),
        objective="late-log",
        outer_optimizer=OuterAdam(
            learning_rate=5e-3, schedule="cosine", weight_decay=0.05
        ),
        num_outer_steps=2_000,
        average_decay=0.99,
        validation_tasks=(
            "digits-mlp-gelu",
            "digits-conv-tanh",
            "wine-autoencoder",
            "diabetes-mlp-deep",
            "characters-lstm",
            "characters-transformer",
        ),
        num_evaluation_runs=8,
        run_dir=Path("runs/general"),
    ),
    "demo": MetaTrainConfig(
        systems=_mixture(
            "digits-mlp-batches", "digits-classes-scaled", "diabetes-mlp-batches"
        ),
        estimator=PES(
            Truncation(length=20, horizon=400, min_horizon=40),
            num_pairs=16,
            std=0.1,
            normalize="estimate",
        ),
        objective="late-log",
        outer_optimizer=OuterAdam(learning_rate=1e-2, schedule="cosine"),
        num_outer_steps=400,
        evaluate_every_steps=200,
        num_evaluation_runs=4,
        run_dir=Path("runs/demo"),
    ),
    "digits-mlp": MetaTrainConfig(
        systems=(InnerTraining(MLP(), _SMALL_MLP),),
        estimator=PES(Truncation(length=10, horizon=200), num_pairs=32, std=0.03),
        outer_optimizer=OuterAdam(learning_rate=2e-2, schedule="cosine"),
        num_outer_steps=2_000,
        run_dir=Path("runs/digits-mlp"),
    ),
    "mnist-mlp": MetaTrainConfig(
        systems=(InnerTraining(MLP("mnist", batch_size=128, width=100), _SMALL_MLP),),
        estimator=PES(Truncation(length=20, horizon=1_000), num_pairs=16, std=0.03),
        outer_optimizer=OuterAdam(learning_rate=1e-2, schedule="cosine"),
        num_outer_steps=5_000,
        run_dir=Path("runs/mnist-mlp"),
    ),
    "tables-mlp": MetaTrainConfig(
        systems=(
            InnerTraining(MLP("wine"), _SMALL_MLP),
            InnerTraining(MLP("diabetes"), _SMALL_MLP),
        ),
        estimator=PES(Truncation(length=10, horizon=200), num_pairs=16, std=0.03),
        outer_optimizer=OuterAdam(learning_rate=2e-2, schedule="cosine"),
        run_dir=Path("runs/tables-mlp"),
    ),
    "swimmer": MetaTrainConfig(
        systems=(Swimmer(),),
        estimator=PES(
            Truncation(length=100, horizon=1_000),
            num_pairs=10,
            std=0.1,
            normalize="loss",
        ),
        outer_optimizer=OuterAdam(learning_rate=0.02),
        num_outer_steps=500,
        run_dir=Path("runs/swimmer"),
    ),
    "quadratic-schedule": MetaTrainConfig(
        systems=(InnerTraining(RandomQuadratic(), ScheduledSGD()),),
        estimator=PES(Truncation(length=10, horizon=100), num_pairs=32, std=0.1),
        outer_optimizer=OuterAdam(learning_rate=1e-2),
        run_dir=Path("runs/quadratic-schedule"),
    ),
    "toy-regression": MetaTrainConfig(
        systems=(InnerTraining(ToyRegression(), ScheduledSGD()),),
        estimator=PES(Truncation(length=10, horizon=100), num_pairs=50, std=1.0),
        outer_optimizer=OuterAdam(learning_rate=1e-2),
        num_outer_steps=5_000,
        log_every_steps=100,
        run_dir=Path("runs/toy-regression"),
    ),
    "influence-balancing": MetaTrainConfig(
        systems=(InfluenceBalancing(),),
        estimator=PES(Truncation(length=1, horizon=500), num_pairs=500, std=0.1),
        log_every_steps=100,
        run_dir=Path("runs/influence-balancing"),
    ),
}
