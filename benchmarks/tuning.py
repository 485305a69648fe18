"""Benchmark vectorized tuning of the baselines: ``python -m benchmarks.tuning [TASK]``.

Trains the grid of learning rates and schedules of every baseline in three ways: with
`evaluation.training.batched.train`, which vectorizes over runs; with a Python loop over
runs; and with a Python loop over runs and steps. The vectorized program also evaluates
on the test set; the loops do not.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from evaluation.baselines import (
    BASELINES,
    SCHEDULES,
    Baseline,
    Setting,
    candidate,
    first_rates,
    setting,
)
from evaluation.training.batched import Runs, train
from lopt.cli.main import tune_cpu_compiler
from meta_train.core.inner_training import InnerTraining
from tasks.base import Family
from tasks.zoo import ZOO

NUM_STEPS = 200


def main() -> None:
    """Print the time with compilation, the time without it, and the CPU time."""
    tune_cpu_compiler()
    task = ZOO[sys.argv[1] if len(sys.argv) > 1 else "digits-mlp"].problem
    assert isinstance(task, Family)
    groups = [_grid(name) for name in BASELINES]
    ways = {
        "all at once": lambda: [x.train_loss for x in train(task, NUM_STEPS, groups)],
        "a loop over runs, each a compiled scan": _by_runs(task, groups),
        "a loop over runs and their steps": _by_steps(task, groups),
    }
    times = {}
    for name, way in ways.items():
        begin = time.perf_counter()
        way()
        first = time.perf_counter() - begin
        wall, cpu = time.perf_counter(), time.process_time()
        way()
        times[name] = (
            first,
            time.perf_counter() - wall,
            time.process_time() - cpu,
        )
    ours = times["all at once"]
    num = sum(len(group.keys) for group in groups)
    print(f"{num} runs of {NUM_STEPS} steps: with compilation, without, CPU; over ours")
    for name, taken in times.items():
        shown = "  ".join(f"{t:6.2f} s" for t in taken)
        ratios = "  ".join(f"{t / o:5.1f}" for t, o in zip(taken, ours, strict=True))
        print(f"{name:40}{shown}  {ratios}")


def _grid(name: str) -> Runs:
    """Build one run for every initial learning rate and schedule of a baseline."""
    rates = first_rates(candidate(name))
    thetas = [setting(rate, schedule) for rate in rates for schedule in SCHEDULES]
    stacked: Setting = jax.tree.map(lambda *x: jnp.stack(x), *thetas)
    return Runs(
        Baseline(name), stacked, jax.random.split(jax.random.key(0), len(thetas))
    )


def _each(group: Runs):
    """Yield `theta` and the key of each run."""
    for i, key in enumerate(group.keys):
        yield jax.tree.map(lambda x, i=i: x[i], group.thetas), key


def _by_runs(task: Family, groups: list[Runs]):
    """Loop over runs in Python, with one compiled scan over the steps of a run."""

    def one(system, data, theta, key):
        key_init, key_steps = jax.random.split(key)
        state = system.init_state(theta, data, NUM_STEPS, key_init)

        def step(state, key):
            return system.step(theta, state, system.sample_input(data, state, key))

        return jax.lax.scan(step, state, jax.random.split(key_steps, NUM_STEPS))[1]

    run = jax.jit(one, static_argnums=0)

    def loop():
        for group in groups:
            system = InnerTraining(task, group.optimizer)
            data = system.load()
            for theta, key in _each(group):
                np.asarray(run(system, data, theta, key))

    return loop


def _by_steps(task: Family, groups: list[Runs]):
    """Loop over runs and steps in Python, with one compiled step."""
    problem, data = (
        task.problem(task.sample_constants(jax.random.key(0))),
        task.load("train"),
    )
    init = jax.jit(problem.init_params)

    def one(optimizer, data, theta, params, state, key):
        batch = problem.sample_batch(data, key)
        loss, grads = jax.value_and_grad(problem.loss)(params, batch)
        tx = optimizer.as_optax(theta, NUM_STEPS)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    step = jax.jit(one, static_argnums=0)

    def loop():
        for group in groups:
            for theta, key in _each(group):
                key_init, key_steps = jax.random.split(key)
                params, losses = init(key_init), []
                state = group.optimizer.as_optax(theta, NUM_STEPS).init(params)
                for key_step in jax.random.split(key_steps, NUM_STEPS):
                    params, state, loss = step(
                        group.optimizer, data, theta, params, state, key_step
                    )
                    losses.append(loss)
                np.stack(losses)

    return loop


if __name__ == "__main__":
    main()
