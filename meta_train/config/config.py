"""Configuration of a meta-training run, from a preset and the command line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import tyro

from lopt.errors import UserError, lookup
from lopt.files.dataclass_json import differences, to_dict
from lopt.kernels.prepare import Kernels
from meta_train.config.own_code import SourceFile
from meta_train.core.inner_training import InnerTraining
from meta_train.core.objectives import OBJECTIVES, Objective
from meta_train.estimators import GradientEstimator
from meta_train.outer.outer_optimizer import (
    OuterAdam,
    OuterOptimizer,
)
from meta_train.outer.trainer import Trainer
from tasks.base import Family, ParameterizedFamily, UnrolledSystem
from tasks.zoo import ZOO
from tasks.zoo_queries import unique_names

LoggerName: TypeAlias = Literal["wandb", "tensorboard", "csv"]


@dataclass(frozen=True, kw_only=True)
class MetaTrainConfig:
    """Configuration of one meta-training run.

    Raises:
        ValueError: If a field is out of range, or if the systems do not share theta.
    """

    systems: tuple[UnrolledSystem, ...]
    """Systems to meta-train on. Their meta-gradients are averaged."""
    estimator: GradientEstimator
    """Estimator of the meta-gradient."""
    objective: Objective = "mean"
    """Meta-objective over the losses of an episode: their mean, the final loss, the
    mean log loss, a mean that weights late steps more, or a combination."""
    outer_optimizer: OuterOptimizer = OuterAdam()
    """Optimizer of the outer parameters theta."""
    num_outer_steps: int = 1_000
    """Number of outer updates."""
    system_weights: tuple[float, ...] = ()
    """Weight of each system in the mean meta-gradient; equal by default."""
    systems_per_update: int | None = None
    """Systems sampled and unrolled per outer update, which bounds the cost of an update
    for large mixtures; all systems by default."""
    average_decay: float = 0.0
    """Decay of the exponential moving average of theta. The average is then evaluated
    and exported instead of theta; 0 disables it."""
    validation_tasks: tuple[str, ...] = ()
    """Held-out tasks of the zoo, by name, to evaluate theta on during meta-training."""
    select: Literal["last", "best"] = "last"
    """Theta to export: the last, or the one with the lowest validation loss."""
    init: str = ""
    """Exported file, or name of a shipped optimizer, whose theta the run starts from;
    by default, theta is initialized by the optimizer."""
    seed: int = 0
    """Random seed of the run, in [0, 2**32)."""
    run_dir: Path = Path("runs/default")
    """Directory of checkpoints, metrics, config and export. A run that it already
    contains is resumed."""
    resize: bool = False
    """Whether resuming may change the population size."""
    restart: bool = False
    """Whether to start from step 0 if all checkpoints in `run_dir` are damaged."""
    max_faulty_updates: int = 100
    """Consecutive outer updates without a usable meta-gradient after which the run
    stops with an error: the gradient is zero, or most members are not finite. 0 never
    stops, and a run that ends so is neither saved nor exported."""
    log_every_steps: int = 10
    """Outer updates between log entries. Metrics are averaged over the interval."""
    evaluate_every_steps: int = 250
    """Outer updates between evaluations on fresh inner runs; 0 disables them."""
    num_evaluation_runs: int = 16
    """Inner runs per system in each evaluation, with unperturbed theta."""
    kernels: Kernels = "auto"
    """Elementwise functions on CPU: native code, where it is faster, or XLA. `auto`
    uses native code if it can be compiled. The run records which one it used."""
    checkpoint_every_steps: int = 0
    """Outer updates between checkpoints; 0 disables checkpoints by step count."""
    checkpoint_every_minutes: float = 5.0
    """Minutes between checkpoints; 0 disables checkpoints by time."""
    loggers: tuple[LoggerName, ...] = ("wandb",)
    """Loggers beside `metrics.jsonl`: Weights & Biases, TensorBoard event files in
    `run_dir/tensorboard`, or the table `run_dir/metrics.csv`."""
    wandb: Literal["auto", "online", "offline", "off"] = "auto"
    """Weights & Biases mode. `auto` uses the variable WANDB_MODE if it is set, else
    online with an API key and offline without."""
    wandb_project: str = "lopt"
    """Weights & Biases project."""
    sources: Annotated[tuple[SourceFile, ...], tyro.conf.Suppress] = ()
    """Files of the user that define tasks, optimizers or estimators of the run."""

    def __post_init__(self):
        _check_shared_theta(self.systems)
        self._check_mixture()
        self._check_validation()
        for name in self.loggers:
            lookup("logger", name, dict.fromkeys(get_args(LoggerName)))
        if not 0 <= self.seed < 2**32:
            raise ValueError(
                f"`seed` must lie between 0 and 2**32 - 1; got {self.seed}. Try 0."
            )
        for name, least in {
            "num_outer_steps": 1,
            "log_every_steps": 1,
            "evaluate_every_steps": 0,
            "num_evaluation_runs": 1,
            "checkpoint_every_steps": 0,
            "checkpoint_every_minutes": 0,
            "max_faulty_updates": 0,
        }.items():
            if getattr(self, name) < least:
                raise ValueError(
                    f"`{name}` must be at least {least}; got {getattr(self, name)}."
                )

    def _check_mixture(self) -> None:
        num = len(self.systems)
        if self.system_weights and (
            len(self.system_weights) != num
            or not min(self.system_weights) >= 0
            or not 0 < sum(self.system_weights) < math.inf
        ):
            raise ValueError(
                f"`system_weights` must be {num} non-negative numbers, one for each "
                f"system, not all zero; got {self.system_weights}."
            )
        if self.systems_per_update is not None and not (
            1 <= self.systems_per_update <= num
        ):
            raise ValueError(
                f"`systems_per_update` must lie between 1 and the {num} systems of the "
                f"mixture; got {self.systems_per_update}. Try {max(1, num // 2)}."
            )
        if not 0 <= self.average_decay < 1:
            raise ValueError(
                f"`average_decay` must lie in [0, 1); got {self.average_decay}. "
                "Try 0.99."
            )

    def _check_validation(self) -> None:
        if self.select == "best" and not self.validation_tasks:
            raise ValueError(
                '`select="best"` needs tasks to validate on; got no '
                "`validation_tasks`. Try --validation-tasks digits-mlp-wide."
            )
        if self.validation_tasks and not self.evaluate_every_steps:
            raise ValueError(
                "`evaluate_every_steps` must be positive to validate; got 0. Try 250."
            )
        if self.validation_tasks and not self.validation_systems:
            raise ValueError(
                "`validation_tasks` must be given systems that train a learned "
                f"optimizer; got {type(self.systems[0]).__name__}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Unique name of each system in metrics and figures."""
        return unique_names([system.zoo_problem for system in self.systems])

    @property
    def validation_systems(self) -> tuple[InnerTraining, ...]:
        """Inner training of each validation task with the learned optimizer.

        Empty if no system trains a learned optimizer.
        """
        inner = [s for s in self.systems if isinstance(s, InnerTraining)]
        if not inner:
            return ()
        problems = [lookup("task", name, ZOO).problem for name in self.validation_tasks]
        for name, problem in zip(self.validation_tasks, problems, strict=True):
            if not isinstance(problem, Family) or isinstance(
                problem, ParameterizedFamily
            ):
                raise UserError(
                    "validation tasks must be trained by the learned optimizer alone; "
                    f"{name} is not. Try another task of `lopt tasks`."
                )
        return tuple(
            InnerTraining(problem, inner[0].optimizer, inner[0].measure)
            for problem in problems
            if isinstance(problem, Family)
        )

    @property
    def horizon(self) -> int:
        """Number of steps of the longest inner run."""
        return self.estimator.truncation.horizon

    def make_trainer(self) -> Trainer:
        """Construct the trainer of this configuration."""
        wrap = OBJECTIVES[self.objective]
        return Trainer(
            systems=tuple(wrap(system) for system in self.systems),
            estimator=self.estimator,
            outer_optimizer=self.outer_optimizer,
            num_outer_steps=self.num_outer_steps,
            names=self.names,
            weights=self.system_weights,
            systems_per_update=self.systems_per_update,
            average_decay=self.average_decay,
            keep_best=bool(self.validation_tasks),
        )


def _check_shared_theta(systems: Sequence[UnrolledSystem]) -> None:
    """Validate that all systems have the same outer parameters."""
    if not systems:
        raise ValueError("`systems` must not be empty. Try --tasks digits-mlp.")
    owners = [system.theta_owner for system in systems]
    for i, owner in enumerate(owners):
        if owner != owners[0]:
            if type(owner) is type(owners[0]):
                first, other = (to_dict(x) for x in (owners[0], owner))
                how = "; ".join(differences(first, other)) or "they are not equal"
            else:
                how = f"{type(owners[0]).__name__} -> {type(owner).__name__}"
            raise ValueError(
                "`systems` must share one learned optimizer, since they share theta; "
                f"system {i} differs from system 0 ({how}). Give all of them the same "
                "hyperparameters: a flag of --systems.0.optimizer must be repeated for "
                "each system."
            )
