"""Loop of outer updates, with logging, evaluation and checkpoints between them."""

import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lopt.errors import UserError
from meta_train.config.config import MetaTrainConfig
from meta_train.core.objectives import OBJECTIVES
from meta_train.devices import distributed, sharding
from meta_train.outer.outer_state import Best, OuterState
from meta_train.outer.trainer import Trainer, mean_losses
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.health import TrainingHealth
from meta_train.runtime.metrics import MetricsLog, theta_metrics
from meta_train.runtime.progress import ProgressReport
from meta_train.runtime.stop_request import StopRequest
from tasks.base import Data

_SECONDS_BETWEEN_PLANS = 2.0


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


@dataclass
class OuterLoop:
    """Outer updates in chunks, with logging, evaluation and checkpoints between."""

    config: MetaTrainConfig
    trainer: Trainer
    data: tuple[Data, ...]
    checkpoints: Checkpoints
    log: MetricsLog | None
    """Metrics log of process 0; `None` on the other processes."""
    progress: ProgressReport
    stop: StopRequest
    health: TrainingHealth

    def __post_init__(self):
        config = self.config
        self._intervals = [
            config.log_every_steps,
            config.evaluate_every_steps or config.num_outer_steps,
            config.checkpoint_every_steps or config.num_outer_steps,
        ]
        self._evaluate = Evaluator(config, self.trainer, self.data)
        self._evaluated: dict[str, float] = {}
        self._totals: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._seconds_per_update = 0.0
        self._saved_at = self._logged_at = time.monotonic()

    def run(self, state: OuterState) -> OuterState:
        """Update `state` until the last outer step, a stop request or poor health.

        If an exception interrupts the run, the last state is saved first.
        """
        config = self.config
        step = self._logged = int(state.step)
        plan = _UpdateSchedule(step, False, "")
        self.progress.note("compiling")
        self.progress.resume(step)
        try:
            if step == 0:
                state = self._report_start(state)
            while True:
                save = False
                if step >= plan.until:
                    plan = self._make_plan(step)
                    save = plan.save
                is_over = bool(plan.stop) or step == config.num_outer_steps
                is_over |= self.health.is_over
                due = is_over or save or any(step % n == 0 for n in self._intervals)
                if step > self._logged and due:
                    state = self._report(state, step)
                # A resumed run neither logs nor evaluates at the step of its
                # checkpoint: save after both.
                if save:
                    self._save(state)
                if is_over:
                    return state
                # Run up to multiples of the intervals, independently of the step at
                # which the run was resumed.
                nexts = [step + n - step % n for n in self._intervals]
                num = min(*nexts, plan.until, config.num_outer_steps) - step
                state, metrics = self._update(state, num)
                step += num
                self.health.observe(step, num, metrics)
        except UserError:
            raise
        except Exception:
            # The buffers of `state` are donated to the update that is running.
            if jax.process_count() == 1 and not state.step.is_deleted():
                self._save(state)
                self.checkpoints.wait()
            raise

    def _report_start(self, state: OuterState) -> OuterState:
        """Evaluate and log the initial theta, the first point of all curves."""
        if self.config.evaluate_every_steps:
            state, self._evaluated = self._evaluate(state)
        known = {**self._evaluated, **theta_metrics(state.theta)}
        if known and self.log is not None:
            self.log.write(0, {**known, "inner_steps": 0})
        return state

    def _make_plan(self, step: int) -> _UpdateSchedule:
        num = int(_SECONDS_BETWEEN_PLANS / (self._seconds_per_update or math.inf))
        minutes = self.config.checkpoint_every_minutes
        save = bool(minutes) and time.monotonic() - self._saved_at > 60 * minutes
        plan = _UpdateSchedule(step + max(num, 1), save, self.stop.name or "").agreed()
        # A signal may have arrived since the plan was made: do not overwrite it.
        self.stop.name = plan.stop or self.stop.name
        return plan

    def _update(
        self, state: OuterState, num: int
    ) -> tuple[OuterState, dict[str, float]]:
        """Take `num` outer updates; return the state and the mean metrics."""
        called = time.monotonic()
        state, found = self.trainer.run(self.data, state, num)
        metrics = {name: float(v) for name, v in jax.device_get(found).items()}
        for name, value in metrics.items():
            self._totals[name].append((num, value))
        has_compiled = not self._seconds_per_update
        self._seconds_per_update = (time.monotonic() - called) / num
        if has_compiled:  # Exclude compile time from the ETA.
            self.progress.resume(int(state.step))
        return state, metrics

    def _report(self, state: OuterState, step: int) -> OuterState:
        """Log the metrics since the last report; evaluate and save if it is time."""
        config = self.config
        means = {name: _weighted_mean(parts) for name, parts in self._totals.items()}
        done = (step - self._logged) * self.trainer.num_inner_steps
        means["inner_steps_per_second"] = done / (time.monotonic() - self._logged_at)
        means["inner_steps"] = step * self.trainer.num_inner_steps
        means |= theta_metrics(state.theta)
        if config.evaluate_every_steps and step % config.evaluate_every_steps == 0:
            state, self._evaluated = self._evaluate(state)
            means |= self._evaluated
        if self.log is not None:
            self.log.write(step, means)
        shown = {k: v for k, v in self._evaluated.items() if "/" not in k}
        if bad := means.get("num_nonfinite", 0.0):
            shown["non-finite members"] = bad
        self.progress.update(step, {"loss": means["loss"], **shown})
        if config.checkpoint_every_steps and step % config.checkpoint_every_steps == 0:
            self._save(state)
        self._logged, self._logged_at = step, time.monotonic()
        self._totals.clear()
        return state

    def _save(self, state: OuterState) -> None:
        """Save a checkpoint, unless it would replace a good one by a bad one."""
        self._saved_at = time.monotonic()
        if not self.health.num_faulty and self._is_sound(state):
            if self.log is not None:
                self.log.flush()
            self.checkpoints.save(state)

    def save_last(self, state: OuterState) -> None:
        """Save the state that `run` has returned, under the condition of `_save`.

        Raises:
            UserError: If it cannot be written.
        """
        if not self.health.num_faulty and self._is_sound(state):
            self.checkpoints.save_last(state)

    def _is_sound(self, state: OuterState) -> bool:
        """Check that theta is finite and equal on all processes (collective).

        Raises:
            UserError: If theta differs between processes; or if it is not finite,
                unless the run never stops because of faults.
        """
        theta = [
            np.asarray(x.addressable_data(0)) for x in jax.tree.leaves(state.theta)
        ]
        step = int(state.step)
        digest = hashlib.sha256(b"".join(x.tobytes() for x in theta)).hexdigest()
        distributed.check_equal(f"theta at step {step}", digest)
        is_finite = all(np.isfinite(x).all() for x in theta)
        if not is_finite and self.config.max_faulty_updates:
            raise UserError(self.health.divergence(step, self.checkpoints.latest))
        return is_finite


def _weighted_mean(parts: Sequence[tuple[int, float]]) -> float:
    """Compute the mean over outer updates, ignoring NaN.

    The metrics of a system are NaN if it was not sampled.

    Args:
        parts: Pairs of a number of outer updates and the mean value over them.
    """
    known = [(num, value) for num, value in parts if not math.isnan(value)]
    total = sum(num for num, _ in known)
    return sum(num * value for num, value in known) / total if total else math.nan


class Evaluator:
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
