"""Batched inner training: one compiled program shared by tuning and evaluation."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from evaluation.training.batch_training import BatchState, BatchTraining
from evaluation.training.work import Advance, no_progress
from lopt.base import LearnedOptimizer, Theta
from meta_train.core.inner_training import InnerTrainingState, Splits
from meta_train.core.unroll import unroll
from tasks.base import Data, Family, Loss
from tasks.size import size

_LONGEST_STRETCH = 20  # Maximum number of steps between two test evaluations.
_NUM_TEST_BATCHES = 4
# Maximum number of runs of one optimizer in a batch. Tuning and evaluation share it, so
# that both use one compiled program.
_MOST_AT_ONCE = 10
# Maximum FLOPs of a step, summed over the batched runs of one optimizer. Larger batches
# do not increase the throughput of a CPU.
_CPU_FLOPS_AT_ONCE, _FLOPS_AT_ONCE = 1e8, 1e11


class Runs(NamedTuple):
    """A group of runs of one optimizer.

    Attributes:
        optimizer: The optimizer.
        thetas: Outer parameters of each run; leaves have a leading axis of runs.
        keys: PRNG key of each run.
    """

    optimizer: LearnedOptimizer
    thetas: Theta
    keys: Key[Array, " runs"]


class Curves(NamedTuple):
    """Loss curves of a group of runs.

    Attributes:
        train_loss: Loss on the batch of each step, before its update.
        test_loss: Loss on batches of the test set, every `stretch_length` steps and
            thus at the end.
        test_error: Error rate on the same batches; NaN for tasks without classes.
    """

    train_loss: Float[np.ndarray, "runs steps"]
    test_loss: Float[np.ndarray, "runs points"]
    test_error: Float[np.ndarray, "runs points"]


def train(
    task: Family,
    num_steps: int,
    groups: Sequence[Runs],
    advance: Advance = no_progress,
) -> list[Curves]:
    """Train all runs of all groups with one compiled program.

    The program is compiled for `stretch_length` steps and called repeatedly, so that
    runs of different lengths can share it.

    Args:
        task: Task to train.
        num_steps: Steps of each run.
        groups: Runs of each optimizer. Groups may differ in their number of runs.
        advance: Callback with the fraction that was completed since the last call. It
            may be called from a worker thread, and may raise to stop the training.

    Returns:
        Curves of each group.
    """
    data = Splits(task.load("train"), task.load("test"))
    most = max(len(group.keys) for group in groups)
    # XLA parallelizes little within one program on a CPU: two threads halve the time.
    num_threads = 2 if jax.default_backend() == "cpu" else 1
    at_once = min(runs_at_once(task), most)

    def one_round(start: int) -> Curves:
        # Pad by repeating the last run of a group, so that all batches have the same
        # shape and compile once.
        rows = np.arange(start, start + at_once)
        return _train_together(
            task,
            num_steps,
            data,
            [_rows(group, np.minimum(rows, len(group.keys) - 1)) for group in groups],
            lambda fraction: advance(fraction / len(starts)),
        )

    starts = range(0, most, at_once)
    with ThreadPoolExecutor(num_threads) as pool:
        rounds = list(pool.map(one_round, starts))
    whole = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *rounds)
    return [
        jax.tree.map(lambda x, i=i, g=g: x[i, : len(g.keys)], whole)
        for i, g in enumerate(groups)
    ]


def _train_together(
    task: Family,
    num_steps: int,
    data: Splits,
    groups: Sequence[Runs],
    advance: Advance,
) -> Curves:
    """Train groups with equal numbers of runs.

    Returns:
        Curves with leading axes ``(group, run)``.
    """
    system = BatchTraining(task, tuple(group.optimizer for group in groups))
    thetas = tuple(group.thetas for group in groups)
    keys = jnp.stack([group.keys for group in groups])
    state = _start(system, thetas, data, np.int32(num_steps), keys)
    stretches, length = [], stretch_length(num_steps)
    for _ in range(0, num_steps, length):
        state, curves = _stretch(system, length, data, thetas, state)
        stretches.append(jax.device_get(curves))
        advance(length / num_steps)

    def join(*x):
        return np.concatenate(x, axis=-1)

    return jax.tree.map(join, *stretches)


def select_keys(keys: Key[Array, " n"], rows: np.ndarray) -> Key[Array, " m"]:
    """Index an array of keys on the host, which compiles nothing."""
    data = np.asarray(jax.random.key_data(keys))[rows]
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(keys))


def _rows(runs: Runs, rows: np.ndarray) -> Runs:
    thetas = jax.tree.map(lambda x: np.asarray(x)[rows], runs.thetas)
    return Runs(runs.optimizer, thetas, select_keys(runs.keys, rows))


def stretch_length(num_steps: int) -> int:
    """Number of steps between two test evaluations.

    This is the largest divisor of `num_steps` up to 20; it is 1 for primes above 20.
    """
    return max(n for n in range(1, _LONGEST_STRETCH + 1) if num_steps % n == 0)


def runs_at_once(task: Family) -> int:
    """Number of runs of one optimizer to train in a batch, from the FLOPs of a step."""
    room = _CPU_FLOPS_AT_ONCE if jax.default_backend() == "cpu" else _FLOPS_AT_ONCE
    flops = np.nan_to_num(size(task).flops, nan=1.0)
    return int(np.clip(room / max(flops, 1.0), 1, _MOST_AT_ONCE))


@functools.partial(jax.jit, static_argnames="system")
def _start(
    system: BatchTraining,
    thetas: tuple[Theta, ...],
    data: Splits,
    num_steps: Int[Array, ""],
    keys: Key[Array, "groups runs"],
) -> BatchState:
    return system.init_state(thetas, data, num_steps, keys)


@functools.partial(
    jax.jit, static_argnames=("system", "length"), donate_argnames="state"
)
def _stretch(
    system: BatchTraining,
    length: int,
    data: Splits,
    thetas: tuple[Theta, ...],
    state: BatchState,
) -> tuple[BatchState, Curves]:
    """Train all runs for `length` steps, then evaluate on the test set.

    Args:
        system: Task and optimizers.
        length: Number of steps.
        data: Training set and test set.
        thetas: Outer parameters of each group.
        state: State of all runs, donated.

    Returns:
        The new state, and curves with leading axes ``(group, run)``.
    """
    key = jax.random.key(0)  # unused: every run has its own key
    state, losses = unroll(system, data, thetas, state, length, key)
    measure = functools.partial(_measure, system.task, data.held_out)
    tested = jax.vmap(measure)(system.evaluated(state))

    def shape(x):
        return x.reshape(-1, len(system.optimizers), num).transpose(1, 2, 0)

    num = len(state.keys) // len(system.optimizers)
    return state, Curves(*map(shape, (losses, *tested)))


def _measure(task: Family, data: Data, state: InnerTrainingState) -> tuple[Loss, Loss]:
    """Compute mean loss and error rate on a few batches of the test set."""
    problem = task.problem(state.constants)

    def one(key):
        batch = problem.sample_batch(data, key)
        error = jnp.nan if problem.error is None else problem.error(state.params, batch)
        return problem.reported(state.params, batch), jnp.asarray(error, jnp.float32)

    # A fixed key: all runs are evaluated on the same batches.
    keys = jax.random.split(jax.random.key(0), _NUM_TEST_BATCHES)
    loss, error = jax.lax.map(one, keys)
    return loss.mean(), error.mean()
