"""Batched inner training: one compiled program shared by tuning and evaluation."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key
from optax import contrib

from evaluation.baselines import Fixed
from evaluation.training.flat_parameters import Unravel, flat_systems, unraveler
from lopt.base import LearnedOptimizer, Theta
from meta_train.core.inner_training import InnerTraining, InnerTrainingState, Splits
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


def train(task: Family, num_steps: int, groups: Sequence[Runs]) -> list[Curves]:
    """Train all runs of all groups with one compiled program.

    The program is compiled for `stretch_length` steps and called repeatedly, so that
    runs of different lengths can share it.

    Args:
        task: Task to train.
        num_steps: Steps of each run.
        groups: Runs of each optimizer. Groups may differ in their number of runs.

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
        )

    with ThreadPoolExecutor(num_threads) as pool:
        rounds = list(pool.map(one_round, range(0, most, at_once)))
    whole = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *rounds)
    return [
        jax.tree.map(lambda x, i=i, g=g: x[i, : len(g.keys)], whole)
        for i, g in enumerate(groups)
    ]


def _train_together(
    task: Family, num_steps: int, data: Splits, groups: Sequence[Runs]
) -> Curves:
    """Train groups with equal numbers of runs.

    Returns:
        Curves with leading axes ``(group, run)``.
    """
    optimizers = tuple(group.optimizer for group in groups)
    thetas = tuple(group.thetas for group in groups)
    begun = [_begin(task, data, g.keys, np.int32(num_steps)) for g in groups]
    states, keys = _start(task, optimizers, thetas, begun)
    stretches, length = [], stretch_length(num_steps)
    for first in range(0, num_steps, length):
        states, curves = _stretch(
            task, optimizers, length, data, thetas, states, keys, np.int32(first)
        )
        stretches.append(curves)

    def join(*x):
        return np.concatenate(jax.device_get(x), axis=-1)

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


@functools.partial(jax.jit, static_argnames="task")
def _begin(
    task: Family, data: Splits, keys: Key[Array, " runs"], num_steps: Int[Array, ""]
) -> tuple[InnerTrainingState, Key[Array, " runs"]]:
    """Initialize runs without optimizer states.

    Returns:
        States whose parameters are flattened to vectors, and a key for the steps of
        each run.
    """
    split = jax.vmap(jax.random.split)(keys)
    start = jax.vmap(_bare(task).init_state, (None, None, None, 0))
    state = start((), data, num_steps, split[:, 0])
    params = jax.vmap(lambda params: ravel_pytree(params)[0])(state.params)
    return state.replace(params=params), split[:, 1]


@functools.partial(jax.jit, static_argnames=("task", "optimizers"))
def _start(
    task: Family,
    optimizers: tuple[LearnedOptimizer, ...],
    thetas: tuple[Theta, ...],
    begun: Sequence[tuple[InnerTrainingState, Key[Array, " runs"]]],
) -> tuple[tuple[InnerTrainingState, ...], Key[Array, " all"]]:
    """Add optimizer states, and concatenate the keys of all groups."""
    states = tuple(
        jax.vmap(system.with_optimizer)(theta, state)
        for system, theta, (state, _) in zip(
            flat_systems(task, optimizers), thetas, begun, strict=True
        )
    )
    return states, jnp.concatenate([keys for _, keys in begun])


@functools.partial(
    jax.jit,
    static_argnames=("task", "optimizers", "length"),
    donate_argnames="states",
)
def _stretch(
    task: Family,
    optimizers: tuple[LearnedOptimizer, ...],
    length: int,
    data: Splits,
    thetas: tuple[Theta, ...],
    states: tuple[InnerTrainingState, ...],
    keys: Key[Array, " all"],
    first: Int[Array, ""],
) -> tuple[tuple[InnerTrainingState, ...], Curves]:
    """Train all runs for `length` steps, then evaluate on the test set.

    Args:
        task: Task to train.
        optimizers: Optimizer of each group.
        length: Number of steps.
        data: Training set, and the test set as the validation split.
        thetas: Outer parameters of each group.
        states: States of each group, donated.
        keys: Keys of all runs, group by group.
        first: Index of the first step.

    Returns:
        New states, and curves with leading axes ``(group, run)``.
    """
    # Batch the gradients of all optimizers together: they dominate the compile time.
    systems = flat_systems(task, optimizers)
    bare, num = _bare(task), keys.shape[0] // len(optimizers)
    unravel = unraveler(task)

    def gradient(state, x):
        state = state.replace(params=unravel(state.params))
        value, grads, loss = bare.gradient((), state, x)
        return value, ravel_pytree(grads)[0], loss

    def step(states, i):
        together = _together(states)
        now = jax.vmap(lambda key: jax.random.fold_in(key, first + i))(keys)
        x = jax.vmap(bare.sample_input, (None, 0, 0))(data, together, now)
        found = jax.vmap(gradient)(together, x)
        parts = [_part(found, i, num) for i in range(len(systems))]
        states = tuple(
            jax.vmap(system.apply)(theta, state, value, grads)
            for system, theta, state, (value, grads, _) in zip(
                systems, thetas, states, parts, strict=True
            )
        )
        return states, found[2]

    states, losses = jax.lax.scan(step, states, jnp.arange(length))
    read = [jax.vmap(functools.partial(_read, unravel))(state) for state in states]
    measure = functools.partial(_measure, task, data.held_out)
    tested = jax.vmap(measure)(_together(read))

    def shape(x):
        return x.reshape(-1, len(systems), num).transpose(1, 2, 0)

    return states, Curves(*map(shape, (losses, *tested)))


def _bare(task: Family) -> InnerTraining:
    """System with an empty optimizer, for initialization, batches and gradients."""
    return InnerTraining(task, Fixed(optax.identity()))


def _together(states: Sequence[InnerTrainingState]) -> InnerTrainingState:
    """Concatenate the states of all groups, without their optimizer states."""
    bare = [state.replace(opt_state=()) for state in states]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *bare)


def _part(tree: Any, i: int, num: int) -> Any:
    return jax.tree.map(lambda x: x[i * num : (i + 1) * num], tree)


def _read(unravel: Unravel, state: InnerTrainingState) -> InnerTrainingState:
    """Replace the parameters by the unflattened ones to evaluate.

    Schedule-free optimizers (Defazio et al., 2024) compute gradients at an interpolated
    point, and are evaluated at the average of their iterates.
    """
    params, opt_state = unravel(state.params), state.opt_state
    if isinstance(opt_state, contrib.ScheduleFreeState):
        # The state of an elementwise baseline is flattened like its parameters.
        if isinstance(opt_state.z, jax.Array):
            opt_state = opt_state._replace(z=unravel(opt_state.z))
        params = contrib.schedule_free_eval_params(opt_state, params)
    return state.replace(params=params)


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
