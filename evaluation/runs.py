"""Many inner runs at once: the one program that tuning and evaluation are made of."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key
from optax import contrib

from evaluation.baselines import Fixed
from lopt.base import LearnedOptimizer, Theta
from meta_train.inner_training import InnerTraining, InnerTrainingState, Splits
from tasks.base import Data, Family, Loss, Params
from tasks.size import size

_LONGEST_STRETCH = 20  # steps between two looks at the test set
_NUM_TEST_BATCHES = 4
_MOST_AT_ONCE = 20
# FLOP of a step, over all runs of one optimizer at once. More does not help a CPU.
_CPU_FLOPS_AT_ONCE, _FLOPS_AT_ONCE = 1e8, 1e11


class Runs(NamedTuple):
    """Runs of one optimizer, each with a theta and a key of its own."""

    optimizer: LearnedOptimizer
    thetas: Theta
    keys: Key[Array, " runs"]


class Curves(NamedTuple):
    """What came of them.

    Attributes:
        train_loss: Of the batch of every step, where the step begins.
        test_loss: On the test set, a few times along the run and at its end.
        test_error: The share of mistakes there; not a number without classes.
    """

    train_loss: Float[np.ndarray, "runs steps"]
    test_loss: Float[np.ndarray, "runs points"]
    test_error: Float[np.ndarray, "runs points"]


def train(task: Family, num_steps: int, groups: Sequence[Runs]) -> list[Curves]:
    """Trains `task` in all runs of all groups, with one compiled program.

    The program takes a stretch of steps, so that it fits runs of any length.
    """
    data = Splits(task.load("train"), task.load("test"))
    optimizers = tuple(group.optimizer for group in groups)
    most = max(len(group.keys) for group in groups)
    at_once = min(runs_at_once(task), most)
    rounds = []
    for start in range(0, most, at_once):
        # What is left over is filled up with runs again: there is but one shape.
        rows = [
            np.minimum(np.arange(start, start + at_once), len(group.keys) - 1)
            for group in groups
        ]
        chosen = [(g.thetas, g.keys, r) for g, r in zip(groups, rows, strict=True)]
        thetas = tuple(jax.tree.map(lambda x, r=r: x[r], t) for t, _, r in chosen)
        keys = jnp.stack([k[r] for _, k, r in chosen])
        states, keys = _start(task, optimizers, data, thetas, keys, np.int32(num_steps))
        stretches, length = [], stretch_length(num_steps)
        for first in range(0, num_steps, length):
            states, curves = _stretch(
                task, optimizers, length, data, thetas, states, keys, np.int32(first)
            )
            stretches.append(curves)
        join = lambda *x: np.concatenate(jax.device_get(x), axis=-1)
        rounds.append(jax.tree.map(join, *stretches))
    whole = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *rounds)
    return [
        jax.tree.map(lambda x, i=i, g=g: x[i, : len(g.keys)], whole)
        for i, g in enumerate(groups)
    ]


def stretch_length(num_steps: int) -> int:
    """Returns after how many steps the test set is looked at: a divisor."""
    return max(n for n in range(1, _LONGEST_STRETCH + 1) if num_steps % n == 0)


def runs_at_once(task: Family) -> int:
    """Returns how many runs of an optimizer are trained side by side."""
    room = _CPU_FLOPS_AT_ONCE if jax.default_backend() == "cpu" else _FLOPS_AT_ONCE
    flops = np.nan_to_num(size(task).flops, nan=1.0)
    return int(np.clip(room / max(flops, 1.0), 1, _MOST_AT_ONCE))


@functools.partial(jax.jit, static_argnames=("task", "optimizers"))
def _start(
    task: Family,
    optimizers: tuple[LearnedOptimizer, ...],
    data: Splits,
    thetas: tuple[Theta, ...],
    keys: Key[Array, "optimizers runs"],
    num_steps: Int[Array, ""],
) -> tuple[tuple[InnerTrainingState, ...], Key[Array, " all"]]:
    """Returns the states before the first step, and a key for the steps of each."""
    num = keys.shape[1]
    split = jax.vmap(jax.random.split)(keys.reshape(-1))
    start = jax.vmap(_bare(task).init_state, (None, None, None, 0))
    together = start((), data, num_steps, split[:, 0])
    states = tuple(
        jax.vmap(InnerTraining(task, optimizer).with_optimizer)(
            theta, _part(together, i, num)
        )
        for i, (optimizer, theta) in enumerate(zip(optimizers, thetas, strict=True))
    )
    return states, split[:, 1]


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
    # All gradients are taken together, whatever the optimizer: that is most of what
    # there is to compile.
    systems = [InnerTraining(task, optimizer) for optimizer in optimizers]
    bare, num = _bare(task), keys.shape[0] // len(optimizers)

    def step(states, i):
        together = _together(states)
        now = jax.vmap(lambda key: jax.random.fold_in(key, first + i))(keys)
        x = jax.vmap(bare.sample_input, (None, 0, 0))(data, together, now)
        found = jax.vmap(bare.gradient, (None, 0, 0))((), together, x)
        parts = [_part(found, i, num) for i in range(len(systems))]
        states = tuple(
            jax.vmap(system.apply)(theta, state, value, grads)
            for system, theta, state, (value, grads, _) in zip(
                systems, thetas, states, parts, strict=True
            )
        )
        return states, found[2]

    states, losses = jax.lax.scan(step, states, jnp.arange(length))
    measure = functools.partial(_measure, task, data.validation)
    tested = jax.vmap(measure)(_together(states, read=True))
    shape = lambda x: x.reshape(-1, len(systems), num).transpose(1, 2, 0)
    return states, Curves(*map(shape, (losses, *tested)))


def _bare(task: Family) -> InnerTraining:
    """Returns what all optimizers have in common."""
    return InnerTraining(task, Fixed(optax.identity()))


def _together(
    states: Sequence[InnerTrainingState], *, read: bool = False
) -> InnerTrainingState:
    """Joins the runs of all optimizers, without what is the optimizers' own."""
    bare = [
        state.replace(
            params=jax.vmap(_read)(state.opt_state, state.params)
            if read
            else state.params,
            opt_state=(),
        )
        for state in states
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *bare)


def _part(tree: Any, i: int, num: int) -> Any:
    return jax.tree.map(lambda x: x[i * num : (i + 1) * num], tree)


def _read(opt_state: optax.OptState, params: Params) -> Params:
    """Returns the parameters that an optimizer stands for, to be tested."""
    # Schedule-free ones take their gradients beside them.
    if isinstance(opt_state, contrib.ScheduleFreeState):
        return contrib.schedule_free_eval_params(opt_state, params)
    return params


def _measure(task: Family, data: Data, state: InnerTrainingState) -> tuple[Loss, Loss]:
    """Returns loss and share of mistakes on a few batches of the test set."""
    problem = task.at(state.constants)

    def one(key):
        batch = problem.sample_batch(data, key)
        error = jnp.nan if problem.error is None else problem.error(state.params, batch)
        return problem.measure(state.params, batch), jnp.asarray(error, jnp.float32)

    # The same batches for all.
    keys = jax.random.split(jax.random.key(0), _NUM_TEST_BATCHES)
    loss, error = jax.lax.map(one, keys)
    return loss.mean(), error.mean()
