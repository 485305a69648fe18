"""Cost of a step: latency, and bytes of optimizer state per parameter."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from evaluation.baselines import Fixed
from lopt.base import LearnedOptimizer, Theta
from meta_train.core.inner_training import InnerTraining, InnerTrainingState, Splits
from tasks.base import Family

# Steps in one compiled loop, which amortizes the dispatch overhead.
_STEPS_AT_ONCE = 10
_SECONDS = 0.15  # Minimum duration of a measurement.


class StepCost(NamedTuple):
    """Cost of one step.

    Attributes:
        ms: Latency in milliseconds.
        bytes_per_parameter: Size of the optimizer state over the number of parameters.
    """

    ms: float
    bytes_per_parameter: float


Timer: TypeAlias = Callable[[], StepCost]
"""Measures a compiled program. Nothing else should run at the same time."""


def prepare_update(shapes: Any, optimizer: LearnedOptimizer, theta: Theta) -> Timer:
    """Compile the update of `optimizer`, without the gradient.

    Args:
        shapes: Pytree of `jax.ShapeDtypeStruct`, like the parameters.
        optimizer: Optimizer to measure.
        theta: Its outer parameters.

    Returns:
        Function that measures the compiled update.
    """
    params = _filled(shapes, 0.1)

    def transformation(theta):
        return optimizer.as_optax(theta, 1_000)

    def begin(theta, params):
        return transformation(theta).init(params)

    state = _filled(jax.eval_shape(begin, theta, params), 0.0)
    num_bytes = sum(x.nbytes for x in jax.tree.leaves(state))

    def update(theta, params, state):
        def step(_, carry):
            params, state = carry
            # Gradients depend on the parameters, so that XLA cannot elide a step.
            grads = jax.tree.map(lambda p: 1e-3 * p, params)
            updates, state = transformation(theta).update(
                grads, state, params, value=jnp.float32(1.0)
            )
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, _STEPS_AT_ONCE, step, (params, state))

    arguments = (theta, params, state)
    compiled = jax.jit(update).lower(*arguments).compile()
    each = num_bytes / sum(x.size for x in jax.tree.leaves(params))
    return lambda: StepCost(_time(compiled, *arguments), each)


def prepare_gradient(task: Family, shapes: Any) -> Timer:
    """Compile sampling a batch and computing its gradient.

    Args:
        task: Task to measure. Its training data is loaded.
        shapes: Pytree of `jax.ShapeDtypeStruct`, like the parameters.

    Returns:
        Function that measures the compiled gradient.
    """
    system = InnerTraining(task, Fixed(optax.identity()))
    data, key = Splits(task.load("train"), ()), jax.random.key(0)
    state = InnerTrainingState(
        _filled(shapes, 0.1), (), jnp.int32(1_000), task.sample_constants(key)
    )

    def gradients(data, state, key):
        def step(i, params):
            now = state.replace(params=params)
            x = system.sample_input(data, now, jax.random.fold_in(key, i))
            _, grads, _ = system.gradient((), now, x)
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads)

        return jax.lax.fori_loop(0, _STEPS_AT_ONCE, step, state.params)

    arguments = (data, state, key)
    compiled = jax.jit(gradients).lower(*arguments).compile()
    return lambda: StepCost(_time(compiled, *arguments), 0.0)


def _filled(shapes: Any, value: float) -> Any:
    return jax.tree.map(lambda x: jnp.full(x.shape, value, x.dtype), shapes)


def _time(compiled: Any, *arguments: Any) -> float:
    """Measure the median latency of a step in milliseconds."""
    jax.block_until_ready(compiled(*arguments))
    times, end = [], time.monotonic() + _SECONDS
    while len(times) < 3 or time.monotonic() < end:
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times) / _STEPS_AT_ONCE
