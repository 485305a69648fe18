"""What a run is: one frozen dataclass, filled from a preset and the command line."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lopt.describe import differences, from_dict, to_dict
from lopt.errors import UserError
from lopt.registry import OPTIMIZERS
from meta_train.estimators import ESTIMATORS, GradientEstimator
from meta_train.inner_training import InnerTraining
from meta_train.outer_optimizer import OuterAdam
from meta_train.truncation import Truncation
from tasks.base import UnrolledSystem
from tasks.zoo import KINDS

CONFIG_FILE = "config.json"


@dataclass(frozen=True, kw_only=True)
class MetaTrainConfig:
    """One meta-training run."""

    systems: tuple[UnrolledSystem, ...]
    """What theta is trained on; the gradients of several are averaged."""
    estimator: GradientEstimator
    """How the gradient of theta is estimated."""
    objective: Literal["mean", "final"] = "mean"
    """Whether theta is to lower the mean loss of an episode or its last one."""
    outer_optimizer: OuterAdam = OuterAdam()
    """What theta is updated by."""
    num_outer_steps: int = 1_000
    """Outer updates to take."""
    seed: int = 0
    """Fixes every random number of the run."""
    run_dir: Path = Path("runs/default")
    """Checkpoints, metrics, config and export go here; resumed if it holds a run."""
    resize: bool = False
    """Whether a run that is resumed may go on with a population of another size."""
    log_every_steps: int = 10
    """Outer updates between two lines of metrics; they are averaged in between."""
    evaluate_every_steps: int = 250
    """Outer updates between two evaluations on fresh inner runs; 0 for never."""
    num_evaluation_runs: int = 16
    """Fresh unperturbed inner runs in each evaluation."""
    checkpoint_every_steps: int = 0
    """Outer updates between two checkpoints; 0 to go by the clock alone."""
    checkpoint_every_minutes: float = 5.0
    """Minutes between two checkpoints; 0 to go by steps alone."""
    wandb: Literal["auto", "online", "offline", "off"] = "auto"
    """Weights & Biases: auto is online if there is an API key, offline if not."""
    wandb_project: str = "lopt"
    """Project that the run is shown under in Weights & Biases."""

    def __post_init__(self):
        owners = {
            system.owner if isinstance(system, InnerTraining) else system
            for system in self.systems
        }
        if len(owners) != 1:
            raise ValueError(
                "`systems` must be one or more that share one learned optimizer, since "
                f"they share theta; got {len(owners)} different owners of theta."
            )
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
        }.items():
            if getattr(self, name) < least:
                raise ValueError(
                    f"`{name}` must be at least {least}; got {getattr(self, name)}."
                )

    @property
    def horizon(self) -> int:
        """Steps of the longest inner run."""
        return self.estimator.truncation.horizon


# Fields that change how a run is watched, not what it computes.
_OPERATIONAL = {
    "run_dir",
    "resize",
    "log_every_steps",
    "evaluate_every_steps",
    "num_evaluation_runs",
    "checkpoint_every_steps",
    "checkpoint_every_minutes",
    "wandb",
    "wandb_project",
}

_POPULATION = ("estimator.num_pairs:", "estimator.num_episodes:")

_TYPES: dict[str, type] = {
    **OPTIMIZERS,
    **ESTIMATORS,
    **KINDS,
    **{t.__name__: t for t in (MetaTrainConfig, InnerTraining, Truncation, OuterAdam)},
}


def write_config(config: MetaTrainConfig) -> None:
    """Writes `config` into its run directory, unless that holds another run."""
    path = config.run_dir / CONFIG_FILE
    new = to_dict(config)
    if _has_begun(config.run_dir):
        changed = differences(_essence(_read(path)), _essence(new))
        sizes = [line for line in changed if line.startswith(_POPULATION)]
        if config.resize:
            changed = [line for line in changed if line not in sizes]
        if changed:
            also = ", or --resize to change its population" if changed == sizes else ""
            raise UserError(
                f"{config.run_dir} holds a run of another configuration "
                "(run -> asked for):\n  "
                + "\n  ".join(changed)
                + "\nTry another --run-dir, or the flags of that run to resume it"
                + f"{also}."
            )
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(new, indent=2) + "\n")
    partial.replace(path)


def read_config(run_dir: Path) -> MetaTrainConfig:
    """Returns the configuration of the run in `run_dir`."""
    described = _read(run_dir / CONFIG_FILE)
    del described["run_dir"]  # it may have been moved
    return dataclasses.replace(from_dict(described, _TYPES), run_dir=run_dir)


def _has_begun(run_dir: Path) -> bool:
    """Whether there is anything in `run_dir` that another run could spoil."""
    metrics, checkpoints = run_dir / "metrics.jsonl", run_dir / "checkpoints"
    has_metrics = metrics.exists() and metrics.stat().st_size > 0
    return has_metrics or (checkpoints.exists() and any(checkpoints.iterdir()))


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} must be the run directory of a `lopt meta-train`; "
            f"it has no {CONFIG_FILE}."
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is damaged: {error}. Try another --run-dir."
        ) from error


def _essence(described: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in described.items() if k not in _OPERATIONAL}
