"""Host side of a meta-training run: resume, update, log, checkpoint and export."""

import dataclasses
import json
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lopt.files.dataclass_json import to_dict
from meta_train.config.config import MetaTrainConfig, write_config
from meta_train.core.objectives import OBJECTIVES
from meta_train.devices import distributed, sharding
from meta_train.outer.trainer import Best, OuterState, Trainer, mean_losses
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.export import (
    CHECKPOINTS_DIR,
    OPTIMIZER_FILE,
    export,
    exportable,
)
from meta_train.runtime.kernels import resolve_kernels
from meta_train.runtime.metrics import MetricsLog
from meta_train.runtime.plot import draw
from meta_train.runtime.progress import ProgressReport
from meta_train.runtime.run_directory import check_writable, lock_run_directory
from tasks.base import Data

_SECONDS_BETWEEN_PLANS = 2.0


class StopRequest:
    """Signal handler that turns Ctrl-C and SIGTERM into a stop request.

    A further Ctrl-C exits at once, without saving.

    Attributes:
        name: Name of the signal that requested the stop; `None` without a request.
    """

    def __init__(self, say: Callable[[str], None]):
        """Initialize without a request."""
        self.name: str | None = None
        self._say = say
        self._previous = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None and number == signal.SIGINT:
            os._exit(130)  # An exception could be raised inside the compiler.
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._say(
            f"{self.name}: saving before exit; press Ctrl-C to exit without saving."
        )


def meta_train(config: MetaTrainConfig) -> None:
    """Run or resume meta-training until the last outer step or a stop request.

    Collective: every process of a run calls this function. Process 0 prints and writes
    metrics for all.
    """
    with distributed.ending_together(config.run_dir):
        _meta_train(config)


def _meta_train(config: MetaTrainConfig) -> None:
    distributed.check_alike({**to_dict(config), "run_dir": None})
    trainer, data, first = config.make_trainer(), (), distributed.is_first()

    def prepare():
        nonlocal data
        sharding.check(trainer.estimator.population_size, jax.device_count())
        data = trainer.load()
        trainer.check(data)
        check_writable(config.run_dir, flag="--run-dir")

    distributed.run_collectively(prepare)
    distributed.check_shared(config.run_dir, flag="--run-dir")
    with ExitStack() as stack:

        def hold():
            return stack.enter_context(lock_run_directory(config.run_dir))

        distributed.run_collectively(hold, first_only=True)
        progress = stack.enter_context(
            ProgressReport(config.run_dir.name, config.num_outer_steps, quiet=not first)
        )
        config = resolve_kernels(config, progress.say)
        distributed.run_collectively(lambda: write_config(config), first_only=True)
        stop = stack.enter_context(StopRequest(progress.say))
        state = trainer.init(data, config.seed)
        checkpoints = Checkpoints(config.run_dir / CHECKPOINTS_DIR, progress.say)
        stack.callback(checkpoints.close)
        if checkpoints.latest is not None:
            state = resume(trainer, data, state, checkpoints, progress.say)
        log = None
        if first:
            log = MetricsLog(config, to_dict(config), int(state.step), progress.say)
            stack.callback(log.close)
        state = _loop(config, trainer, data, state, checkpoints, log, progress, stop)
        checkpoints.save_last(state)
        step = int(state.step)
        if step < config.num_outer_steps:
            progress.say(
                f"Stopped by {stop.name} and saved at step {step} of "
                f"{config.num_outer_steps}; the same command resumes."
            )
        elif exportable(config) and first:
            path = export(config, state, config.run_dir / OPTIMIZER_FILE)
            progress.say(f"Exported to {path}.")
        if first and config.evaluate_every_steps:
            progress.say(f"Figure: {draw(config, config.run_dir)}")


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


class _UpdateSchedule(NamedTuple):
    """Plan of all processes until their next synchronization.

    Attributes:
        until: Outer step of the next synchronization.
        save: Whether to save a checkpoint now.
        stop: Name of the signal that requested a stop; empty without a request.
    """

    until: int
    save: bool
    stop: str

    def agreed(self) -> "_UpdateSchedule":
        """Broadcast the plan of process 0, with a stop request of any process."""
        said = distributed.all_gather_text(json.dumps(self))
        plans = [_UpdateSchedule(*json.loads(text)) for text in said]
        stops = [plan.stop for plan in plans if plan.stop]
        return plans[0]._replace(stop=stops[0] if stops else "")


def _loop(
    config: MetaTrainConfig,
    trainer: Trainer,
    data: tuple[Data, ...],
    state: OuterState,
    checkpoints: Checkpoints,
    log: MetricsLog | None,
    progress: ProgressReport,
    stop: StopRequest,
) -> OuterState:
    """Run outer updates in chunks, with logging, evaluation and checkpoints between.

    Returns:
        State after the last outer step or after a stop request.
    """
    intervals = [
        config.log_every_steps,
        config.evaluate_every_steps or config.num_outer_steps,
        config.checkpoint_every_steps or config.num_outer_steps,
    ]
    evaluate = _Evaluator(config, trainer, data)
    step = logged = int(state.step)
    saved_at = logged_at = time.monotonic()
    plan, seconds_per_update = _UpdateSchedule(step, False, ""), 0.0
    totals: dict[str, list[tuple[int, float]]] = defaultdict(list)
    evaluated: dict[str, float] = {}
    progress.note("compiling")
    progress.resume(step)
    if step == 0 and config.evaluate_every_steps:
        # Evaluate the initial theta: first point of all curves and the baseline for
        # the best theta.
        state, evaluated = evaluate(state)
        if log is not None:
            log.write(0, evaluated)
    while True:
        if step >= plan.until:
            stretch = int(_SECONDS_BETWEEN_PLANS / (seconds_per_update or math.inf))
            minutes = config.checkpoint_every_minutes
            due = minutes and time.monotonic() - saved_at > 60 * minutes
            plan = _UpdateSchedule(
                step + max(stretch, 1), bool(due), stop.name or ""
            ).agreed()
            # A signal may have arrived since the plan was made: do not overwrite it.
            stop.name = plan.stop or stop.name
            if plan.save:
                checkpoints.save(state)
                saved_at = time.monotonic()
        is_over = bool(plan.stop) or step == config.num_outer_steps
        if step > logged and (is_over or any(step % n == 0 for n in intervals)):
            means = {name: _weighted_mean(parts) for name, parts in totals.items()}
            seconds = time.monotonic() - logged_at
            done = (step - logged) * trainer.num_inner_steps
            means["inner_steps_per_second"] = done / seconds
            if config.evaluate_every_steps and step % config.evaluate_every_steps == 0:
                state, evaluated = evaluate(state)
                means |= evaluated
            if log is not None:
                log.write(step, means)
            shown = {k: v for k, v in evaluated.items() if "/" not in k}
            progress.update(step, {"loss": means["loss"], **shown})
            if config.checkpoint_every_steps and step % intervals[-1] == 0:
                checkpoints.save(state)
                saved_at = time.monotonic()
            logged, logged_at = step, time.monotonic()
            totals.clear()
        if is_over:
            return state
        # Run up to multiples of the intervals, independently of the step at which the
        # run was resumed.
        nexts = [step + n - step % n for n in intervals]
        num = min(*nexts, plan.until, config.num_outer_steps) - step
        called = time.monotonic()
        state, metrics = trainer.run(data, state, num)
        for name, value in jax.device_get(metrics).items():
            totals[name].append((num, float(value)))
        has_compiled = not seconds_per_update
        seconds_per_update = (time.monotonic() - called) / num
        step += num
        if has_compiled:
            progress.resume(step)  # Exclude compile time from the ETA.


def _weighted_mean(parts: Sequence[tuple[int, float]]) -> float:
    """Compute the mean over outer updates, ignoring NaN.

    The metrics of a system are NaN if it was not sampled.

    Args:
        parts: Pairs of a number of outer updates and the mean value over them.
    """
    known = [(num, value) for num, value in parts if not math.isnan(value)]
    total = sum(num for num, _ in known)
    return sum(num * value for num, value in known) / total if total else math.nan


class _Evaluator:
    """Evaluation of theta on fresh inner runs, with the same keys every time."""

    def __init__(self, config: MetaTrainConfig, trainer: Trainer, data: Any):
        """Load and replicate the data of the validation tasks."""
        self._config, self._trainer, self._data = config, trainer, data
        wrap = OBJECTIVES[config.objective]
        self._validation = tuple(wrap(s) for s in config.validation_systems)
        self._validation_data = sharding.replicate(
            tuple(system.load() for system in self._validation)
        )

    def __call__(self, state: OuterState) -> tuple[OuterState, dict[str, float]]:
        """Evaluate `state` on the training systems and the validation tasks.

        Returns:
            State with the updated best theta, and mean losses by metric name.
        """
        config = self._config
        sizes = (config.horizon, config.num_evaluation_runs)
        key = jax.random.fold_in(state.key, 2**32 - 2)
        losses = self._trainer.meta_loss(self._data, state.result, *sizes, key)
        metrics = _by_name("meta_loss", config.names, losses)
        if not isinstance(state.best, Best):
            return state, metrics
        losses = mean_losses(
            self._validation, self._validation_data, state.result, *sizes, key
        )
        found = _by_name("validation_loss", config.validation_tasks, losses)
        loss = found["validation_loss"]
        if loss < float(state.best.loss):
            best = Best(
                theta=jax.tree.map(jnp.copy, state.result),
                loss=jnp.asarray(loss, jnp.float32),
                step=jnp.copy(state.step),
            )
            placed = jax.tree.map(
                lambda new, old: jax.device_put(new, old.sharding), best, state.best
            )
            state = state.replace(best=placed)
        return state, metrics | found


def _by_name(metric: str, names: Sequence[str], losses: Any) -> dict[str, float]:
    """Compute the unweighted mean loss and, for several systems, each loss by name."""
    values = np.asarray(losses, float)
    parts = {f"{metric}/{n}": float(x) for n, x in zip(names, values, strict=True)}
    return {metric: float(values.mean()), **(parts if len(parts) > 1 else {})}
