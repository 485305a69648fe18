"""Benchmark the overhead of the framework on the PES paper's toy 2D regression.

    python -m benchmarks.overhead

Compares implementations of PES (Vicol et al., 2021) with 100 particles, windows of
K = 10 steps and a horizon of T = 100 steps:

- the Python loop of the paper's code listing,
- a hand-written `jax.lax.scan` over outer updates,
- one call of the trainer, with the compiler flags of the `lopt` command,
- the hand-written scan with those flags, for a like-for-like comparison.

Each runs in its own process. The measurements alternate, so that load on the machine
affects all of them equally. CPU time is reported next to wall time.
"""

import contextlib
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from lopt.cli.main import tune_cpu_compiler
from meta_train.config.preset_configs import CONFIGS

HORIZON, LENGTH, NUM_PARTICLES, STD, LEARNING_RATE = 100, 10, 100, 1.0, 1e-2
START = np.ones(2, np.float32)
THETA = np.log(np.full(2, 0.01, np.float32))


def inner_loss(x):
    """Loss of the toy 2D regression, the same as `tasks.synthetic.toy_regression`."""
    ripples = jnp.sin(x[1]) ** 2 * jnp.exp(-5 * x[0] ** 2)
    bowl = jnp.sqrt(x[0] ** 2 + 5) - jnp.sqrt(5.0)
    return bowl + ripples + 0.25 * jnp.abs(x[1] - 100)


def unroll(theta, x, age):
    """Take one truncation window of SGD steps.

    The learning rate is interpolated linearly from ``exp(theta[0])`` to
    ``exp(theta[1])`` over the horizon.

    Returns:
        The new inner parameters and the sum of the losses.
    """

    def step(carry, _):
        x, age = carry
        loss, grad = jax.value_and_grad(inner_loss)(x)
        rates = jnp.exp(theta)
        rate = rates[0] * (HORIZON - age) / HORIZON + rates[1] * age / HORIZON
        return (x - rate * grad, age + 1), loss

    (x, _), losses = jax.lax.scan(step, (x, age), length=LENGTH)
    return x, losses.sum()


def pes_gradient(key, theta, xs, accumulators, age):
    """Estimate the meta-gradient by PES.

    Args:
        key: Key of the perturbations.
        theta: Outer parameters, of shape ``(2,)``.
        xs: Inner parameters, of shape ``(particles, 2)``.
        accumulators: Sums of past perturbations, of shape ``(particles, 2)``.
        age: Inner steps taken in this episode, the same for all particles.

    Returns:
        The estimate, the new inner parameters and the new accumulators.
    """
    noise = STD * jax.random.normal(key, (NUM_PARTICLES // 2, 2))
    noise = jnp.concatenate([noise, -noise])
    xs, losses = jax.vmap(unroll, in_axes=(0, 0, None))(theta + noise, xs, age)
    accumulators = accumulators + noise
    return (accumulators * losses[:, None]).mean(0) / STD**2, xs, accumulators


def paper_loop(num_updates: int) -> Callable[[], None]:
    """Python loop with a jitted gradient, Adam in plain `jnp` and manual resets."""
    gradient = jax.jit(pes_gradient)

    def run():
        key, theta = jax.random.key(3), jnp.asarray(THETA)
        m, v = jnp.zeros(2), jnp.zeros(2)
        xs, accumulators, age = _fresh()
        for i in range(num_updates):
            key, key_noise = jax.random.split(key)
            if age >= HORIZON:
                xs, accumulators, age = _fresh()
            grad, xs, accumulators = gradient(key_noise, theta, xs, accumulators, age)
            m = 0.1 * grad + 0.9 * m
            v = 0.001 * grad**2 + 0.999 * v
            corrected = m / (1 - 0.9 ** (i + 1))
            scale = jnp.sqrt(v / (1 - 0.999 ** (i + 1))) + 1e-8
            theta = theta - LEARNING_RATE * corrected / scale
            age += LENGTH
        jax.block_until_ready(theta)

    return run


def _fresh():
    """Initialize inner parameters, accumulators and age."""
    return jnp.ones((NUM_PARTICLES, 2)), jnp.zeros((NUM_PARTICLES, 2)), 0


def bare_scan(num_updates: int) -> Callable[[], None]:
    """Hand-written scan without staggering, metrics or safeguards."""
    optimizer = optax.adam(LEARNING_RATE)

    @functools.partial(jax.jit, donate_argnums=0)
    def updates(carry, key):
        def update(carry, key):
            theta, opt_state, xs, accumulators, age = carry
            over = age >= HORIZON
            xs = jnp.where(over, START, xs)
            accumulators = jnp.where(over, 0.0, accumulators)
            age = jnp.where(over, 0, age)
            grad, xs, accumulators = pes_gradient(key, theta, xs, accumulators, age)
            step, opt_state = optimizer.update(grad, opt_state, theta)
            theta = optax.apply_updates(theta, step)
            return (theta, opt_state, xs, accumulators, age + LENGTH), None

        return jax.lax.scan(update, carry, jax.random.split(key, num_updates))[0]

    def run():
        xs, accumulators, _ = _fresh()
        theta = jnp.asarray(THETA)
        carry = (theta, optimizer.init(theta), xs, accumulators, jnp.asarray(0))
        jax.block_until_ready(updates(carry, jax.random.key(3)))

    return run


def framework(num_updates: int) -> Callable[[], None]:
    """Trainer of the preset `toy-regression`, with all of its features."""
    trainer = CONFIGS["toy-regression"].make_trainer()
    data = trainer.load()

    def run():
        state = trainer.init(data, 3)
        jax.block_until_ready(trainer.run(data, state, num_updates))

    return run


CONTENDERS = {"paper loop": paper_loop, "bare scan": bare_scan, "lopt": framework}
COUNTS = {"paper loop": 500, "bare scan": 10_000, "lopt": 10_000}
_run: Callable[[], None]


def _prepare(name: str, tuned: bool) -> None:
    """Initialize a worker process: set the compiler flags and compile.

    Args:
        name: Key of `CONTENDERS`.
        tuned: Whether to set the compiler flags of the `lopt` command.
    """
    global _run
    if tuned:
        tune_cpu_compiler()
    _run = CONTENDERS[name](COUNTS[name])
    _run()


def _measure(name: str) -> tuple[float, float]:
    """Measure wall time and CPU time per update, in microseconds."""
    start, start_cpu = time.perf_counter(), time.process_time()
    _run()
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return 1e6 * wall / COUNTS[name], 1e6 * cpu / COUNTS[name]


def main(num_rounds: int = 9) -> None:
    rows = {
        "paper loop": ("paper loop", False),
        "bare scan": ("bare scan", False),
        "lopt": ("lopt", True),
        "bare scan, tuned": ("bare scan", True),
    }
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        workers = {
            row: stack.enter_context(
                ProcessPoolExecutor(
                    1, mp_context=context, initializer=_prepare, initargs=arguments
                )
            )
            for row, arguments in rows.items()
        }
        times = {row: [] for row in rows}
        for _ in range(num_rounds):
            for row, (name, _) in rows.items():
                times[row].append(workers[row].submit(_measure, name).result())
    medians = {
        row: [statistics.median(x) for x in zip(*t, strict=True)]
        for row, t in times.items()
    }
    table = Table(title=f"Outer updates on toy 2D regression, median of {num_rounds}")
    for column in (
        "",
        "updates/s",
        "µs",
        "CPU µs",
        "x paper",
        "x bare",
        "x bare, tuned",
    ):
        table.add_column(column, justify="right" if column else "left")
    for row, (wall, cpu) in medians.items():
        table.add_row(
            row,
            f"{1e6 / wall:,.0f}",
            f"{wall:.1f}",
            f"{cpu:.1f}",
            f"{medians['paper loop'][0] / wall:.1f}",
            f"{medians['bare scan'][0] / wall:.2f}",
            f"{medians['bare scan, tuned'][0] / wall:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
