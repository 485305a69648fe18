"""The file `config.json` of a run directory."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

from lopt.errors import UserError, one_line
from lopt.files.atomic import write_atomically
from lopt.files.dataclass_json import differences, from_dict, to_dict
from lopt.files.json_file import read_object
from lopt.kernels.prepare import Kernels
from lopt.registry import OPTIMIZERS
from meta_train.config.config import MetaTrainConfig
from meta_train.config.described import check_parameters, check_sizes
from meta_train.config.own_code import SourceFile, import_recorded
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS
from meta_train.outer.outer_optimizer import OUTER_OPTIMIZERS, OuterOptax
from tasks.base import Family
from tasks.zoo_queries import task_classes

CONFIG_FILE = "config.json"
_MOST_DIFFERENCES = 20

# Fields that may differ on resume, since they do not affect the meta-training updates.
_OPERATIONAL = {
    "kernels",
    "run_dir",
    "resize",
    "restart",
    "max_faulty_updates",
    "log_every_steps",
    "evaluate_every_steps",
    "num_evaluation_runs",
    "checkpoint_every_steps",
    "checkpoint_every_minutes",
    "loggers",
    "wandb",
    "wandb_project",
}


def _types() -> dict[str, type]:
    """Collect the classes that a configuration may contain, by name.

    Called for each file, so that classes registered at run time are included.
    """
    ours = (MetaTrainConfig, InnerTraining, Truncation, SourceFile, OuterOptax)
    named = {kind.__name__: kind for kind in ours}
    return {
        **OPTIMIZERS,
        **ESTIMATORS,
        **OUTER_OPTIMIZERS,
        **task_classes(),
        **named,
    }


def write_config(
    config: MetaTrainConfig,
    say: Callable[[str], None] = print,
    *,
    extend: bool = False,
) -> None:
    """Write `config` to its run directory atomically.

    A damaged or missing file of a run that has begun is replaced, which is reported
    by `say`.

    Raises:
        UserError: If the directory contains a run with a different configuration.
            Operational fields may differ. The population size may differ if
            `config.resize` is set, and `num_outer_steps` if `extend` is.
    """
    path = config.run_dir / CONFIG_FILE
    new = to_dict(config)
    has_begun = _has_begun(config.run_dir)
    old = _recorded(config.run_dir) if has_begun else None
    if has_begun and old is None:
        say(f"{path} is missing or damaged; it is written again from this command.")
    if old is not None:
        changed = differences(_essence(old), _essence(new))
        size = f"estimator.{config.estimator.population_field}:"
        sizes = [line for line in changed if line.startswith(size)]
        if config.resize:
            changed = [line for line in changed if line not in sizes]
        if extend:
            changed = [x for x in changed if not x.startswith("num_outer_steps:")]
        if changed:
            shown = [one_line(line) for line in changed[:_MOST_DIFFERENCES]]
            if changed[_MOST_DIFFERENCES:]:
                shown.append(f"and {len(changed) - _MOST_DIFFERENCES} more")
            also = ", or --resize to change its population" if changed == sizes else ""
            raise UserError(
                f"{config.run_dir} holds a run of another configuration "
                "(run -> asked for):\n  "
                + "\n  ".join(shown)
                + "\nTry another --run-dir, or the flags of that run to resume it"
                + f"{also}."
            )
    if new != old:  # A run resumes even if the disk is full.
        write_atomically(path, json.dumps(new, indent=2) + "\n")


def read_config(run_dir: Path) -> MetaTrainConfig:
    """Load the configuration of the run in `run_dir`."""
    path = run_dir / CONFIG_FILE
    described = _read(path)
    described.pop("run_dir", None)  # The directory may have been moved since.
    for source in _sources(described):
        import_recorded(source)
    try:
        check_sizes(described)
        config = from_dict(described, _types())
        if not isinstance(config, MetaTrainConfig):
            raise UserError(f"it describes a {type(config).__name__}")
        for system in config.systems:
            if isinstance(system, InnerTraining) and isinstance(system.task, Family):
                check_parameters(system.task)
        return dataclasses.replace(config, run_dir=run_dir)
    # Hyperparameters from a file may raise any exception in any task.
    except Exception as error:
        raise UserError(f"{path} is damaged: {one_line(error)}") from error


def _sources(described: dict[str, Any]) -> list[SourceFile]:
    """Files of the user that a configuration names; damaged entries are left out.

    Reading the configuration reports damage afterwards.
    """
    listed = described.get("sources")
    found = []
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict) and each.get("type") == SourceFile.__name__:
            path, sha256 = each.get("path"), each.get("sha256")
            if isinstance(path, str) and isinstance(sha256, str):
                found.append(SourceFile(path, sha256))
    return found


def recorded_kernels(run_dir: Path) -> Kernels:
    """Read the implementation that a run used so far; ``"auto"`` for a new run."""
    known = _recorded(run_dir) if _has_begun(run_dir) else None
    recorded = (known or {}).get("kernels")
    return cast(Kernels, recorded) if recorded in get_args(Kernels) else "auto"


def _has_begun(run_dir: Path) -> bool:
    """Check whether `run_dir` contains metrics or checkpoints of a run."""
    metrics, checkpoints = run_dir / "metrics.jsonl", run_dir / "checkpoints"
    has_metrics = metrics.exists() and metrics.stat().st_size > 0
    return has_metrics or (checkpoints.exists() and any(checkpoints.iterdir()))


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} must be the run directory of a `lopt meta-train`; "
            f"it has no {CONFIG_FILE}."
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: {error}. Try the command that started the run, which "
            "writes it again, or another --run-dir."
        ) from error


def _recorded(run_dir: Path) -> dict[str, Any] | None:
    """Read the configuration of a run; `None` if it is missing or damaged."""
    try:
        described = _read(run_dir / CONFIG_FILE)
    except UserError:
        return None
    return described if described.get("type") == MetaTrainConfig.__name__ else None


def _essence(described: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in described.items() if k not in _OPERATIONAL}
