"""Runs a learned optimizer and the tuned baseline on a suite, with the same seeds."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from evaluation.baselines import LEARNING_RATES, Adam
from evaluation.statistics import (
    Interval,
    final_losses,
    mean_interval,
    mean_losses,
    ratio_interval,
)
from evaluation.suites import Case
from lopt.base import LearnedOptimizer, Theta
from meta_train.inner_training import InnerTraining
from meta_train.unroll import unroll
from tasks.base import Data


class Score(NamedTuple):
    """One metric of the learned optimizer beside Adam at its best learning rate."""

    learned: Interval
    adam: Interval
    ratio: Interval
    learning_rate: float


class Result(NamedTuple):
    """What one case showed; `mean` and `final` are tuned for separately."""

    case: Case
    mean: Score
    final: Score
    num_diverged: int
    learned_curves: Float[np.ndarray, "seeds steps"]
    adam_curves: Float[np.ndarray, "seeds steps"]
    learning_rate_losses: Float[np.ndarray, " rates"]


@functools.partial(jax.jit, static_argnums=(0, 3))
def loss_curves(
    system: InnerTraining,
    data: Data,
    thetas: Theta,
    num_steps: int,
    keys: Key[Array, " seeds"],
) -> Float[Array, "thetas seeds steps"]:
    """Trains `system` from every key at every theta, and returns the losses."""

    def run(theta, key):
        key_init, key_unroll = jax.random.split(key)
        state = system.init_state(theta, data, num_steps, key_init)
        return unroll(system, data, theta, state, num_steps, key_unroll)[1]

    def each_theta(key):
        if len(jax.tree.leaves(thetas)[0]) == 1:  # a batch of one compiles for longer
            return run(jax.tree.map(lambda x: x[0], thetas), key)[None]
        return jax.vmap(run, in_axes=(0, None))(thetas, key)

    # Seeds one after the other: faster to compile than a vmap over keys, and to run.
    curves = jax.lax.map(each_theta, keys)
    return curves.swapaxes(0, 1)


def evaluate_case(
    case: Case, optimizer: LearnedOptimizer, theta: Theta, num_seeds: int, seed: int
) -> Result:
    """Trains `case` with both optimizers from the same unseen seeds."""
    data = InnerTraining(case.task, optimizer).load()
    # Meta-training never folds this number in, so these runs are new to it.
    key = jax.random.fold_in(jax.random.key(seed), 2**32 - 3)
    keys = jax.random.split(key, num_seeds)
    curves = lambda optimizer, thetas: np.asarray(
        loss_curves(
            InnerTraining(case.task, optimizer), data, thetas, case.num_steps, keys
        )
    )
    learned = curves(optimizer, jax.tree.map(lambda x: x[None], theta))[0]
    adam = curves(Adam(), jnp.asarray(LEARNING_RATES, jnp.float32))
    scores, best = {}, {}
    for name, metric in {"mean": mean_losses, "final": final_losses}.items():
        values = metric(adam)
        # The baseline is tuned on the very seeds it is judged on, in its favour.
        best[name] = int(values.mean(axis=1).argmin())
        ours, theirs = metric(learned), values[best[name]]
        scores[name] = Score(
            learned=mean_interval(ours),
            adam=mean_interval(theirs),
            ratio=ratio_interval(ours, theirs),
            learning_rate=float(LEARNING_RATES[best[name]]),
        )
    return Result(
        case=case,
        mean=scores["mean"],
        final=scores["final"],
        num_diverged=int(np.isinf(mean_losses(learned)).sum()),
        learned_curves=learned,
        adam_curves=adam[best["mean"]],
        learning_rate_losses=mean_losses(adam).mean(axis=1),
    )


def evaluate(
    optimizer: LearnedOptimizer,
    theta: Theta,
    cases: tuple[Case, ...],
    *,
    num_seeds: int = 20,
    seed: int = 0,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Evaluates `optimizer` at `theta` on every case, calling back after each."""
    results = []
    # Two at a time: most of the work is compiling, which keeps one core busy.
    with ThreadPoolExecutor(2) as pool:
        run = lambda case: evaluate_case(case, optimizer, theta, num_seeds, seed)
        for result in pool.map(run, cases):
            results.append(result)
            on_result(result)
    return results
