"""Many inner runs at once: the one program that tuning and evaluation are made of."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray
from optax import contrib
from typing_extensions import override

from evaluation.baselines import Baseline, Fixed
from lopt.base import LearnedOptimizer, NumSteps, Theta
from meta_train.inner_training import InnerTraining, InnerTrainingState, Splits
from tasks.base import Data, Family, Loss, Params
from tasks.size import size

_LONGEST_STRETCH = 20  # steps between two looks at the test set
_NUM_TEST_BATCHES = 4
# The same for tuning and for comparing, so that both use one compiled program.
_MOST_AT_ONCE = 10
# FLOP of a step, over all runs of one optimizer at once. More does not help a CPU.
_CPU_FLOPS_AT_ONCE, _FLOPS_AT_ONCE = 1e8, 1e11


Unravel: TypeAlias = Callable[[Float[Array, " size"]], Params]


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
    most = max(len(group.keys) for group in groups)
    # Within a program a CPU does little in parallel: two take half the time.
    num_threads = 2 if jax.default_backend() == "cpu" else 1
    at_once = min(runs_at_once(task), most)

    def one_round(start: int) -> Curves:
        # What is left over is filled up with runs again: there is but one shape.
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
    """Trains as many runs of each group; curves are of (group, run, step)."""
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
    join = lambda *x: np.concatenate(jax.device_get(x), axis=-1)
    return jax.tree.map(join, *stretches)


def choose(keys: Key[Array, " n"], rows: np.ndarray) -> Key[Array, " m"]:
    """Returns some of the keys, by their numbers; nothing is compiled for it."""
    data = np.asarray(jax.random.key_data(keys))[rows]
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(keys))


def _rows(runs: Runs, rows: np.ndarray) -> Runs:
    thetas = jax.tree.map(lambda x: np.asarray(x)[rows], runs.thetas)
    return Runs(runs.optimizer, thetas, choose(runs.keys, rows))


def stretch_length(num_steps: int) -> int:
    """Returns after how many steps the test set is looked at: a divisor."""
    return max(n for n in range(1, _LONGEST_STRETCH + 1) if num_steps % n == 0)


def runs_at_once(task: Family) -> int:
    """Returns how many runs of an optimizer are trained side by side."""
    room = _CPU_FLOPS_AT_ONCE if jax.default_backend() == "cpu" else _FLOPS_AT_ONCE
    flops = np.nan_to_num(size(task).flops, nan=1.0)
    return int(np.clip(room / max(flops, 1.0), 1, _MOST_AT_ONCE))


@functools.partial(jax.jit, static_argnames="task")
def _begin(
    task: Family, data: Splits, keys: Key[Array, " runs"], num_steps: Int[Array, ""]
) -> tuple[InnerTrainingState, Key[Array, " runs"]]:
    """Returns the states before there is an optimizer, and a key for the steps."""
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
    """Returns the states before the first step, and all keys."""
    states = tuple(
        jax.vmap(system.with_optimizer)(theta, state)
        for system, theta, (state, _) in zip(
            _systems(task, optimizers), thetas, begun, strict=True
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
    # All gradients are taken together, whatever the optimizer: that is most of what
    # there is to compile.
    systems = _systems(task, optimizers)
    bare, num = _bare(task), keys.shape[0] // len(optimizers)
    unravel = _unravel(task)

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
    measure = functools.partial(_measure, task, data.validation)
    tested = jax.vmap(measure)(_together(read))
    shape = lambda x: x.reshape(-1, len(systems), num).transpose(1, 2, 0)
    return states, Curves(*map(shape, (losses, *tested)))


def _bare(task: Family) -> InnerTraining:
    """Returns what all optimizers have in common."""
    return InnerTraining(task, Fixed(optax.identity()))


def _systems(
    task: Family, optimizers: Sequence[LearnedOptimizer]
) -> list[InnerTraining]:
    """Returns systems whose parameters are one vector.

    Most optimizers are then compiled once, and not again for every tensor.
    """
    return [
        InnerTraining(
            task,
            optimizer
            if isinstance(optimizer, Baseline) and optimizer.is_pointwise
            else _OfVector(optimizer, _unravel(task)),
        )
        for optimizer in optimizers
    ]


@dataclass(frozen=True)
class _OfVector(LearnedOptimizer):
    """An optimizer that must see the tensors that a vector is made of."""

    optimizer: LearnedOptimizer
    unravel: Unravel

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.optimizer.init_theta(key)

    @override
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        inner = self.optimizer.as_optax(theta, num_steps)

        def update(updates, state, params=None, **extra_args):
            assert params is not None  # inner training always gives them
            updates, state = inner.update(
                self.unravel(updates), state, self.unravel(params), **extra_args
            )
            return ravel_pytree(updates)[0], state

        return optax.GradientTransformationExtraArgs(
            lambda params: inner.init(self.unravel(params)), update
        )


def _unravel(task: Family) -> Unravel:
    """Returns what makes parameters of a vector."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), size(task).params)
    return ravel_pytree(zeros)[1]


def _together(states: Sequence[InnerTrainingState]) -> InnerTrainingState:
    """Joins the runs of all optimizers, without what is the optimizers' own."""
    bare = [state.replace(opt_state=()) for state in states]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *bare)


def _part(tree: Any, i: int, num: int) -> Any:
    return jax.tree.map(lambda x: x[i * num : (i + 1) * num], tree)


def _read(unravel: Unravel, state: InnerTrainingState) -> InnerTrainingState:
    """Returns the state with the parameters that it stands for, to be tested."""
    params, opt_state = unravel(state.params), state.opt_state
    # Schedule-free optimizers take their gradients beside them.
    if isinstance(opt_state, contrib.ScheduleFreeState):
        if isinstance(opt_state.z, jax.Array):  # of the vector
            opt_state = opt_state._replace(z=unravel(opt_state.z))
        params = contrib.schedule_free_eval_params(opt_state, params)
    return state.replace(params=params)


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
