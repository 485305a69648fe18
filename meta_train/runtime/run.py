"""Host side of a meta-training run: resume, update, log, checkpoint and export."""

import dataclasses
import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lopt.errors import UserError, one_line
from lopt.files.dataclass_json import to_dict
from meta_train.config.config import MetaTrainConfig
from meta_train.config.config_file import write_config
from meta_train.devices import distributed, sharding
from meta_train.outer.outer_optimizer import OuterOptax
from meta_train.outer.outer_state import OuterState
from meta_train.outer.trainer import Trainer, initial_theta
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.export import (
    CHECKPOINTS_DIR,
    OPTIMIZER_FILE,
    check_trained,
    export,
    exportable,
)
from meta_train.runtime.health import TrainingHealth
from meta_train.runtime.kernels import resolve_kernels
from meta_train.runtime.loggers import Callback, check_loggers
from meta_train.runtime.loop import OuterLoop
from meta_train.runtime.metrics import MetricsLog
from meta_train.runtime.metrics_file import METRICS_FILE, metric_columns, read_metrics
from meta_train.runtime.plot import draw
from meta_train.runtime.progress import ProgressReport
from meta_train.runtime.provenance import record_provenance
from meta_train.runtime.run_directory import check_writable, lock_run_directory
from meta_train.runtime.start import start_event, start_theta
from meta_train.runtime.stop_request import StopRequest
from tasks.base import Data, Theta


class MetaTrainResult(NamedTuple):
    """Result of a meta-training run.

    Attributes:
        theta: Outer parameters: their moving average, if there is one.
        metrics: Column of each metric by name, see `metric_columns`.
        num_outer_steps: Outer updates taken; fewer than asked for after a stop request.
        export: Path of the exported optimizer; `None` if there is none.
    """

    theta: Theta
    metrics: dict[str, np.ndarray]
    num_outer_steps: int
    export: Path | None


def meta_train(
    config: MetaTrainConfig,
    *,
    extend: bool = False,
    quiet: bool = False,
    callback: Callback | None = None,
    outer_optimizer: optax.GradientTransformation | None = None,
) -> MetaTrainResult:
    """Run or resume meta-training until the last outer step or a stop request.

    Collective: every process of a run calls this function. Process 0 prints and writes
    metrics for all.

    Args:
        config: Configuration of the run, which also names its directory.
        extend: Whether the directory may hold a run of fewer outer updates, which
            continues. Schedules of the outer optimizer are stretched to the new number
            of updates.
        quiet: Whether to print nothing and to draw no figure.
        callback: Function that process 0 calls as ``callback(step, metrics)`` whenever
            metrics are logged. If it raises, the exception is reported and the run
            continues without it.
        outer_optimizer: Optimizer of theta, instead of that of `config`. Resuming the
            run requires the same transformation.

    Returns:
        The final theta and the metrics of the whole run.
    """
    trainer = config.make_trainer()
    if outer_optimizer is not None:
        theta = initial_theta(trainer.systems[0], config.seed)
        recorded = OuterOptax.of(outer_optimizer, theta)
        config = dataclasses.replace(config, outer_optimizer=recorded)
        trainer = dataclasses.replace(trainer, outer_optimizer=outer_optimizer)
    with distributed.ending_together(config.run_dir):
        state, path = _meta_train(config, trainer, extend, quiet, callback)
        # JAX aborts processes that wait for others at exit for more than a few seconds,
        # while process 0 exports and draws.
        distributed.all_gather_text("")
    return MetaTrainResult(
        theta=state.result,
        metrics=metric_columns(read_metrics(config.run_dir / METRICS_FILE)),
        num_outer_steps=int(state.step),
        export=path,
    )


def _meta_train(
    config: MetaTrainConfig,
    trainer: Trainer,
    extend: bool,
    quiet: bool,
    callback: Callback | None,
) -> tuple[OuterState, Path | None]:
    distributed.check_alike({**to_dict(config), "run_dir": None})
    data, first = (), distributed.is_first()

    def prepare():
        nonlocal data
        sharding.check(trainer.estimator.population_size, jax.device_count())
        data = trainer.load()
        trainer.check(data)
        if config.init and not (config.run_dir / CHECKPOINTS_DIR).exists():
            start_theta(config)  # Report errors before anything is written.
        check_writable(config.run_dir, flag="--run-dir")
        check_loggers(config)

    distributed.run_collectively(prepare)
    distributed.check_shared(config.run_dir, flag="--run-dir")
    with ExitStack() as stack:

        def hold():
            return stack.enter_context(lock_run_directory(config.run_dir))

        distributed.run_collectively(hold, first_only=True)
        progress = stack.enter_context(
            ProgressReport(
                config.run_dir.name, config.num_outer_steps, quiet=quiet or not first
            )
        )
        config = resolve_kernels(config, progress.say)
        distributed.run_collectively(
            lambda: write_config(config, progress.say, extend=extend), first_only=True
        )
        stop = stack.enter_context(StopRequest(progress.say))
        checkpoints = Checkpoints(config.run_dir / CHECKPOINTS_DIR, progress.say)
        stack.callback(checkpoints.close)
        checkpoints.check_restart(asked=config.restart)
        events = _events(config, extend, checkpoints.latest)
        distributed.run_collectively(
            lambda: record_provenance(
                config.run_dir, config.names, data, events, progress.say
            ),
            first_only=True,
        )
        state = _first_state(config, trainer, data, checkpoints, progress.say)
        log = None
        if first:
            described, step = to_dict(config), int(state.step)
            log = MetricsLog(config, described, step, progress.say, callback)
            stack.callback(log.close)
        health = TrainingHealth(config, progress.say)
        loop = OuterLoop(
            *(config, trainer, data, checkpoints, log, progress, stop, health)
        )
        state = loop.run(state)
        path = _finish(config, state, loop)
        if first and config.evaluate_every_steps and not quiet and not health.is_over:
            _draw(config, progress.say)
    return state, path


def _events(config: MetaTrainConfig, extend: bool, saved: int | None) -> list[str]:
    """New entries of the history of a run whose latest checkpoint is `saved`."""
    if saved is None:
        return [start_event(config)] if config.init else []
    return [f"extended to {config.num_outer_steps} outer updates"] if extend else []


def _first_state(
    config: MetaTrainConfig,
    trainer: Trainer,
    data: tuple[Data, ...],
    checkpoints: Checkpoints,
    say: Callable[[str], None],
) -> OuterState:
    """Initialize the state of a run, or restore its latest checkpoint."""
    is_new = checkpoints.latest is None
    theta = start_theta(config) if is_new else None
    state = trainer.init(data, config.seed, theta)
    if jax.process_count() > 1:
        program = trainer.lowered_run(data, state)
        digest = hashlib.sha256(program.encode()).hexdigest()
        distributed.check_equal("the program of the run", digest)
    return state if is_new else resume(trainer, data, state, checkpoints, say)


def _finish(config: MetaTrainConfig, state: OuterState, loop: OuterLoop) -> Path | None:
    """Save the last state of a run; export it if the run is complete.

    Returns:
        Path of the exported optimizer; `None` if nothing was exported.

    Raises:
        UserError: If the run ended without a usable meta-gradient.
    """
    is_complete = int(state.step) == config.num_outer_steps
    health, saved, say = loop.health, loop.checkpoints.latest, loop.progress.say
    if health.num_faulty and (is_complete or health.is_over):
        if config.max_faulty_updates:
            raise UserError(health.complaint(saved))
        say(health.complaint(saved))
        return None
    loop.save_last(state)
    if not is_complete:
        saved = loop.checkpoints.latest
        how = "nothing good to save" if saved is None else f"saved at step {saved}"
        say(
            f"Stopped by {loop.stop.name} and {how} of {config.num_outer_steps}; the "
            "same command resumes."
        )
    elif exportable(config) and distributed.is_first():
        check_trained(config, state)
        path = export(config, state, config.run_dir / OPTIMIZER_FILE)
        say(f"Exported to {path}.")
        return path
    return None


def _draw(config: MetaTrainConfig, say: Callable[[str], None]) -> None:
    """Draw the figure of the run; a failure is reported and does not raise."""
    try:
        say(f"Figure: {draw(config, config.run_dir)}")
    except Exception as error:
        say(f"The figure could not be drawn ({one_line(error)}). Try lopt plot later.")


def resume(
    trainer: Trainer,
    data: tuple[Data, ...],
    fresh: OuterState,
    checkpoints: Checkpoints,
    say: Callable[[str], None],
) -> OuterState:
    """Restore the latest checkpoint, resizing its populations if necessary.

    The population size of `trainer` and of its initial state `fresh` is the new one. A
    smaller population keeps evenly spaced members of the checkpoint. A larger one keeps
    all members and adds evenly spaced members of `fresh`.
    """
    say(f"Resumed from the checkpoint at step {checkpoints.latest}.")
    old, new = checkpoints.population_size(), trainer.estimator.population_size
    if old == new:
        return checkpoints.restore(fresh)
    say(f"The population goes from {old} to {new} members.")
    before = dataclasses.replace(trainer, estimator=trainer.estimator.resized(old))
    state = checkpoints.restore(sharding.replicated_shapes(before.shapes(data)))

    # Neighboring members are of similar age: evenly spaced ones cover all ages.
    def spaced(x, num):
        return x[np.arange(num) * x.shape[0] // num]

    def resize(kept, fresh):
        if new < old:
            return spaced(kept, new)
        return jnp.concatenate([kept, spaced(fresh, new - old)])

    populations = jax.tree.map(resize, state.populations, fresh.populations)
    return state.replace(populations=populations).placed()
