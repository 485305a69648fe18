"""Bias, variance and cost of gradient estimators on a system."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

from lopt.errors import UserError, lookup
from lopt.files.dataclass_json import convert
from meta_train.analysis.hlo_cost import ProgramCost, cost
from meta_train.core.truncation import Episode
from meta_train.estimators import ESTIMATORS, FullBackprop, FullES, GradientEstimator
from meta_train.outer.compatibility import Compatibility
from tasks.base import Data, State, Theta, UnrolledSystem


class Measurement(NamedTuple):
    """Measured statistics of an estimator at a fixed theta.

    Attributes:
        mean: Mean estimate, over whole episodes of independent populations.
        error: Standard error of `mean`: root of the sum over coordinates of the squared
            standard errors.
        variance: Total variance of one estimate (trace of the covariance).
        seconds: Run time of one estimate.
        cost: FLOPs and memory of one estimate, from the compiled program.
    """

    mean: np.ndarray
    error: float
    variance: float
    seconds: float
    cost: ProgramCost


class Diagnosis(NamedTuple):
    """Comparison of an estimator with the reference; NaN if it was too slow to measure.

    Attributes:
        estimator: Estimator with its hyperparameters.
        bias: Distance between the mean estimate and the reference, corrected for
            sampling noise, relative to the norm of the reference.
        bias_error: Standard error of `bias`. A bias below two standard errors is not
            significant.
        cosine: Cosine similarity of the mean estimate and the reference.
        variance: Total variance of one estimate, relative to the squared norm of the
            reference.
        signal_to_noise: Signed square of the projection of the mean estimate on the
            reference, divided by the total variance of one estimate.
        seconds: Run time of one estimate.
        cost: FLOPs and bytes of one estimate.
    """

    estimator: GradientEstimator
    bias: float
    bias_error: float
    cosine: float
    variance: float
    signal_to_noise: float
    seconds: float
    cost: ProgramCost

    @property
    def signal_per_second(self) -> float:
        """Signal-to-noise ratio per second: the criterion for choosing an estimator."""
        return self.signal_to_noise / self.seconds

    @property
    def num_windows(self) -> int:
        """Updates per episode; 1 for estimators that unroll whole episodes."""
        steps = self.estimator.steps_per_update
        return max(round(self.estimator.truncation.horizon / steps), 1)


def candidates(
    estimator: GradientEstimator,
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    *,
    names: Sequence[str] = (),
    lengths: Sequence[int] = (),
    population: int = 8,
) -> tuple[list[GradientEstimator], list[str]]:
    """List the estimators to compare on a system, the reference first.

    The reference is `FullBackprop`, or `FullES` if the system is not differentiable.

    Args:
        estimator: Estimator from which the others take the fields that they share.
        system: System to unroll.
        data: Output of `system.load`.
        theta: Outer parameters.
        names: Names of the estimators; all if empty. Named estimators must be
            compatible with the system.
        lengths: Window lengths; that of `estimator` if empty.
        population: Population size of each estimator.

    Returns:
        The estimators, and an error message for each incompatible one.

    Raises:
        UserError: If a named estimator is unknown or incompatible, or if a window
            length is invalid.
    """
    kinds = [lookup("estimator", name, ESTIMATORS) for name in names]
    compatibility = Compatibility(system, data, theta)
    differentiable = compatibility.reason_against("reverse") is None
    reference = FullBackprop if differentiable else FullES
    chosen, refused = [], []
    for kind in dict.fromkeys([reference, *(kinds or ESTIMATORS.values())]):
        # Sorted, because estimators of whole episodes use the first length only.
        for length in sorted(set(lengths) or {estimator.truncation.length}):
            try:
                window = dataclasses.replace(estimator.truncation, length=length)
            except ValueError as error:
                raise UserError(str(error)) from error
            other = convert(estimator, kind, truncation=window).resized(population)
            try:
                compatibility.check(other)
            except UserError as error:
                if kind in kinds:
                    raise
                refused.append(str(error))
                break
            chosen.append(other)
            if other.steps_per_update >= window.horizon:
                break  # Longer windows would not change its estimate.
    return chosen, refused


def diagnose(
    estimators: Sequence[GradientEstimator],
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    key: PRNGKeyArray,
    *,
    seconds: float = 2.0,
    minutes: float = math.inf,
    repeats: int | None = None,
    on_progress: Callable[[str], None] = lambda done: None,
) -> list[Diagnosis]:
    """Measure `estimators` and compare them with the first one, the reference.

    Programs are compiled two at a time and measured one at a time. Estimators that
    would exceed the budget of `minutes` are skipped, except for the first two.

    Args:
        estimators: Estimators to compare; the first is the reference.
        system: System to unroll.
        data: Output of `system.load`.
        theta: Outer parameters at which the gradient is estimated.
        key: Random key of all measurements.
        seconds: Time for which each estimator is measured; twice that for the
            reference. An estimator is not measured if two repetitions would take
            more than eight times as long.
        minutes: Approximate budget for compilation and measurement.
        repeats: Number of populations to measure each estimator with, regardless of
            run time. Results are then reproducible, except for times and order.
        on_progress: Called with a status message, twice for each estimator.

    Returns:
        Diagnoses sorted by `signal_per_second`, largest first and NaN last.
    """
    begin = time.monotonic()
    compiling: list[float] = []

    def compile_one(estimator):
        start = time.monotonic()
        spent = start - begin
        # Longest compile time so far, plus the time to measure this estimator and
        # those compiled before it.
        needed = max(compiling, default=0.0) + 2 * seconds * (len(compiling) + 2)
        if estimator not in estimators[:2] and spent + needed > 60 * minutes:
            for _ in range(2):
                on_progress(f"{type(estimator).__name__} skipped")
            return None
        probe = Probe(estimator, system, data, theta)
        compiling.append(time.monotonic() - start)
        on_progress(f"{type(estimator).__name__} compiled")
        return probe

    with ThreadPoolExecutor(2) as pool:
        probes = [p for p in pool.map(compile_one, estimators) if p is not None]
    measurements = []
    for i, probe in enumerate(probes):
        share = 2 * seconds if i == 0 else seconds
        key_own = jax.random.fold_in(key, i)
        measurements.append(probe.measure(share, key_own, repeats=repeats))
        on_progress(f"{type(probe.estimator).__name__} measured")
    results = [
        _compare(probe.estimator, measurement, measurements[0])
        for probe, measurement in zip(probes, measurements, strict=True)
    ]

    def known(x):
        return -math.inf if math.isnan(x) else x

    return sorted(results, key=lambda r: known(r.signal_per_second), reverse=True)


class Probe:
    """Compiled programs that measure one estimator on a system."""

    def __init__(
        self,
        estimator: GradientEstimator,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
    ):
        self.estimator = estimator
        self._arguments = (data, theta)

        def init(data, theta, key):
            return estimator.init(system, data, theta, key)

        def run(data, theta, state, key, num):
            def update(i, carry):
                state, total, squares = carry
                estimate, state = estimator.update(
                    system, data, theta, state, jax.random.fold_in(key, i)
                )
                flat, _ = ravel_pytree(estimate.grad)
                return state, total + flat, squares + flat @ flat

            flat, _ = ravel_pytree(theta)
            carry = (state, jnp.zeros_like(flat), jnp.zeros((), flat.dtype))
            return jax.lax.fori_loop(0, num, update, carry)

        key = jax.random.key(0)
        self._init = jax.jit(init).lower(data, theta, key).compile()
        state = jax.eval_shape(init, data, theta, key)
        self._has_episodes = _has_episodes(state)
        lowered = jax.jit(run, donate_argnums=2).lower(
            data, theta, state, key, jnp.asarray(1, jnp.int32)
        )
        self._run = lowered.compile()
        self.cost = cost(self._run)

    def measure(
        self, seconds: float, key: PRNGKeyArray, *, repeats: int | None = None
    ) -> Measurement:
        """Measure the estimator over whole episodes of new populations.

        Args:
            seconds: Approximate time to measure for. The statistics of the estimate
                are NaN if two repetitions would take more than eight times as long.
            key: Random key.
            repeats: Number of populations, regardless of run time; None: as many as fit
                into `seconds`, but at least two.
        """
        truncation, estimator = self.estimator.truncation, self.estimator
        num_updates, num_first = 1, 0
        if self._has_episodes:
            num_updates = math.ceil(truncation.horizon / estimator.steps_per_update)
            num_first = num_updates  # Skip the first episodes, which are cut short.
        means, squares = [], []
        start, spent, done = time.perf_counter(), 0.0, 0
        pace = self.pace(key)
        affordable = repeats or 2 * (num_first + num_updates) * pace < 8 * seconds

        def goes_on():
            if repeats is not None:
                return len(means) < repeats
            return len(means) < 2 or time.perf_counter() - start < seconds

        while affordable and goes_on():
            key_init, key_first, key_run = jax.random.split(
                jax.random.fold_in(key, len(means)), 3
            )
            state = self._init(*self._arguments, key_init)
            state, *_ = self._call(state, key_first, num_first)
            begin = time.perf_counter()
            _, total, square = self._call(state, key_run, num_updates)
            spent += time.perf_counter() - begin
            done += num_updates
            means.append(total / num_updates)
            squares.append(square / num_updates)
        if not affordable:
            unknown = np.full_like(ravel_pytree(self._arguments[1])[0], np.nan)
            return Measurement(unknown, np.nan, np.nan, pace, self.cost)
        whole = np.asarray(means, np.float64)
        mean = whole.mean(axis=0)
        error = math.sqrt(whole.var(axis=0, ddof=1).sum() / len(whole))
        # |mean|^2 overestimates the square of the expectation by the variance of the
        # mean.
        variance = max(float(np.mean(squares) - (mean @ mean - error**2)), 0.0)
        return Measurement(mean, error, variance, spent / done, self.cost)

    def pace(self, key: PRNGKeyArray) -> float:
        """Measure the approximate run time of one estimate in seconds."""
        state = self._init(*self._arguments, key)
        pace = math.inf
        for _ in range(2):  # The first call is slower.
            begin = time.perf_counter()
            state, *_ = self._call(state, key, 1)
            pace = min(pace, time.perf_counter() - begin)
            if pace > 1.0:
                break
        return pace

    def _call(self, state: State, key: PRNGKeyArray, num: int) -> Any:
        num_updates = jnp.asarray(num, jnp.int32)
        state, total, squares = self._run(*self._arguments, state, key, num_updates)
        return state, np.asarray(total), float(squares)


def _has_episodes(state: State) -> bool:
    def is_episode(x):
        return isinstance(x, Episode)

    return any(map(is_episode, jax.tree.leaves(state, is_leaf=is_episode)))


def _compare(
    estimator: GradientEstimator, measured: Measurement, reference: Measurement
) -> Diagnosis:
    """Compare a measurement with that of the reference; see `Diagnosis`."""
    squared = max(reference.mean @ reference.mean - reference.error**2, 0.0)
    length = math.sqrt(squared) if squared > 0 else math.nan
    same = measured is reference
    error = math.hypot(measured.error, 0.0 if same else reference.error)
    distance = float(np.linalg.norm(measured.mean - reference.mean))
    along = float(measured.mean @ reference.mean) / np.linalg.norm(reference.mean)
    signal = math.copysign(along**2, along)
    return Diagnosis(
        estimator=estimator,
        bias=math.sqrt(max(distance**2 - error**2, 0.0)) / length
        if not math.isnan(distance)
        else math.nan,
        bias_error=error / length,
        cosine=float(along / np.linalg.norm(measured.mean)),
        variance=measured.variance / length**2,
        signal_to_noise=signal / measured.variance if measured.variance else math.inf,
        seconds=measured.seconds,
        cost=measured.cost,
    )
