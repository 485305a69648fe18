"""Export of the learned optimizer of a run, and restoring of its checkpoints."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import lopt
from lopt.errors import UserError
from lopt.files.dataclass_json import to_dict
from meta_train.config.config import MetaTrainConfig
from meta_train.config.config_file import read_config
from meta_train.core.inner_training import InnerTraining
from meta_train.outer.outer_state import Best, OuterState
from meta_train.outer.trainer import initial_theta
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.start import start_theta

OPTIMIZER_FILE = "optimizer.safetensors"
CHECKPOINTS_DIR = "checkpoints"


def exportable(config: MetaTrainConfig) -> bool:
    """Check whether theta belongs to a learned optimizer."""
    return any(system.learned_optimizer for system in config.systems)


def export(config: MetaTrainConfig, state: OuterState, path: Path) -> Path:
    """Export the learned optimizer of `state` as a safetensors file.

    The exported theta is the moving average if there is one. With
    ``config.select == "best"``, it is the theta with the lowest validation loss, if any
    validation loss was finite.

    Args:
        config: Configuration of the run, which must be exportable.
        state: State to export.
        path: Output file. Its directory is created if missing.

    Returns:
        The path of the output file.
    """
    inner = [s for s in config.systems if isinstance(s, InnerTraining)]
    truncation = config.estimator.truncation
    card = {
        "tasks": [to_dict(system.task) for system in inner],
        "task_names": list(config.names),
        "horizons": [truncation.min_horizon or truncation.horizon, truncation.horizon],
        "estimator": to_dict(config.estimator),
        "objective": config.objective,
        "outer_optimizer": to_dict(config.outer_optimizer),
        "system_weights": list(config.system_weights) or [1.0] * len(config.systems),
        "num_outer_steps": int(state.step),
        "seed": config.seed,
        "init": config.init,
        "sources": to_dict(config.sources),
        "kernels": config.kernels,
    }
    if config.validation_tasks:
        card["validation_tasks"] = list(config.validation_tasks)
    theta, is_best = state.result, config.select == "best"
    if is_best and isinstance(state.best, Best) and jnp.isfinite(state.best.loss):
        theta = state.best.theta
        card |= {
            "num_outer_steps": int(state.best.step),
            "validation_loss": float(state.best.loss),
        }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        theta = inner[0].optimizer_theta(theta)
        lopt.save(path, inner[0].optimizer, theta, card)
    except OSError as error:
        raise UserError(
            f"{path} must be writable; it is not ({error.strerror}). Try another --out."
        ) from error
    return path


def check_trained(config: MetaTrainConfig, state: OuterState) -> None:
    """Validate that `state` has another theta than the one it started from.

    Raises:
        UserError: If no update has changed theta, or if it is not finite.
    """
    try:
        initial = start_theta(config)
    except UserError:  # The file of `config.init` is gone: theta was trained elsewhere.
        initial = initial_theta(config.systems[0], config.seed)
    leaves = jax.tree.leaves(state.theta)
    if not all(bool(jnp.isfinite(x).all()) for x in leaves):
        raise UserError(
            f"theta must be finite; that of {config.run_dir} at step "
            f"{int(state.step)} is not. Try a smaller outer learning rate."
        )
    pairs = zip(leaves, jax.tree.leaves(initial), strict=True)
    if all(bool(jnp.array_equal(a, b)) for a, b in pairs):
        raise UserError(
            f"theta must be trained; that of {config.run_dir} at step "
            f"{int(state.step)} still has its initial value. Try --allow-untrained to "
            "export it all the same."
        )


def export_run(run_dir: Path, path: Path, *, allow_untrained: bool = False) -> Path:
    """Export the latest checkpoint of the run in `run_dir` to `path`.

    Raises:
        UserError: If theta still has its initial value, unless `allow_untrained`.
    """
    config = read_config(run_dir)
    if not exportable(config):
        raise UserError(
            f"{run_dir} trained {type(config.systems[0]).__name__}, which is not a "
            "learned optimizer: there is nothing to export."
        )
    state = restore(config)
    if not allow_untrained:
        check_trained(config, state)
    return export(config, state, path)


def restore(config: MetaTrainConfig) -> OuterState:
    """Restore the latest checkpoint of a run to a single device, read-only.

    Raises:
        UserError: If the run has no checkpoint.
    """
    run_dir = config.run_dir
    checkpoints = Checkpoints(run_dir / CHECKPOINTS_DIR, print, read_only=True)
    try:
        if checkpoints.latest is None:
            raise UserError(
                f"{run_dir} must have a valid checkpoint; it has none. Run "
                "`lopt meta-train` on it first."
            )
        # The outer optimizer of the run may be unknown: its state is not needed.
        trainer = dataclasses.replace(
            config.make_trainer(), outer_optimizer=optax.identity()
        )
        # The checkpoint may have been written on a different number of devices.
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        template = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
            trainer.shapes(trainer.load()),
        )
        template = template.replace(opt_state=checkpoints.shapes("opt_state", here))
        return checkpoints.restore(template)
    finally:
        checkpoints.close()
