"""Inner training of many runs as one unrolled system."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray
from optax import contrib
from typing_extensions import override

from evaluation.baselines import Fixed
from evaluation.training.flat_parameters import flat_systems, unraveler
from lopt.base import LearnedOptimizer, Theta
from meta_train.core.inner_training import InnerTraining, InnerTrainingState, Splits
from tasks.base import Family, Horizon, Input, UnrolledSystem


class BatchState(struct.PyTreeNode):
    """State of `BatchTraining`.

    Attributes:
        groups: States of the runs of each optimizer, with flattened parameters.
        keys: Random key of each run, group by group. Batches do not depend on the other
            runs.
        step: Number of steps taken.
    """

    groups: tuple[InnerTrainingState, ...]
    keys: Key[Array, " all"]
    step: Int[Array, "..."]


@dataclass(frozen=True)
class BatchTraining(UnrolledSystem):
    """Training runs of one task by several optimizers, as one system.

    The gradients of all runs are computed in one batch: they dominate the compile time.
    `theta` has the outer parameters of each optimizer, with a leading axis of runs, and
    the loss of a step is that of every run.
    """

    task: Family
    optimizers: tuple[LearnedOptimizer, ...]

    @override
    def load(self) -> Splits:
        return Splits(self.task.load("train"), self.task.load("test"))

    @override
    def init_theta(self, key: PRNGKeyArray) -> tuple[Theta, ...]:
        return tuple(
            jax.tree.map(lambda x: x[None], optimizer.init_theta(key))
            for optimizer in self.optimizers
        )

    @override
    def init_state(
        self,
        theta: tuple[Theta, ...],
        data: Splits,
        horizon: Horizon,
        key: Key[Array, "groups runs"],
    ) -> BatchState:
        """Initialize all runs.

        Args:
            theta: Outer parameters of the runs of each optimizer.
            data: Training set and test set.
            horizon: Number of steps of each run.
            key: Random key of each run.
        """
        start = jax.vmap(self._bare.init_state, (None, None, None, 0))
        groups, later = [], []
        for system, own, keys in zip(self._systems, theta, key, strict=True):
            first, rest = jax.vmap(jax.random.split, out_axes=1)(keys)
            state = start((), data, horizon, first)
            params = jax.vmap(lambda params: ravel_pytree(params)[0])(state.params)
            state = state.replace(params=params)
            groups.append(jax.vmap(system.with_optimizer)(own, state))
            later.append(rest)
        return BatchState(
            tuple(groups), jnp.concatenate(later), jnp.zeros((), jnp.int32)
        )

    @override
    def sample_input(self, data: Splits, state: BatchState, key: PRNGKeyArray) -> Input:
        """Sample a batch for each run, with the key of the run instead of `key`."""
        now = jax.vmap(lambda own: jax.random.fold_in(own, state.step))(state.keys)
        sample = jax.vmap(self._bare.sample_input, (None, 0, 0))
        return sample(data, _concatenate(state.groups), now)

    @override
    def step(
        self, theta: tuple[Theta, ...], state: BatchState, x: Input
    ) -> tuple[BatchState, Float[Array, " all"]]:
        unravel, bare = unraveler(self.task), self._bare

        def gradient(state, x):
            state = state.replace(params=unravel(state.params))
            value, grads, loss = bare.gradient((), state, x)
            return value, ravel_pytree(grads)[0], loss

        value, grads, losses = jax.vmap(gradient)(_concatenate(state.groups), x)
        num = len(state.keys) // len(self.optimizers)
        groups = tuple(
            jax.vmap(system.apply)(own, group, *_rows((value, grads), i, num))
            for i, (system, own, group) in enumerate(
                zip(self._systems, theta, state.groups, strict=True)
            )
        )
        return state.replace(groups=groups, step=state.step + 1), losses

    def evaluated(self, state: BatchState) -> InnerTrainingState:
        """Collect all runs, with unflattened parameters to evaluate.

        Schedule-free optimizers (Defazio et al., 2024) compute gradients at an
        interpolated point, and are evaluated at the average of their iterates.
        """
        unravel = unraveler(self.task)

        def read(state: InnerTrainingState) -> InnerTrainingState:
            params, opt_state = unravel(state.params), state.opt_state
            if isinstance(opt_state, contrib.ScheduleFreeState):
                # The state of an elementwise baseline is flattened like its parameters.
                if isinstance(opt_state.z, jax.Array):
                    opt_state = opt_state._replace(z=unravel(opt_state.z))
                params = contrib.schedule_free_eval_params(opt_state, params)
            return state.replace(params=params)

        return _concatenate([jax.vmap(read)(group) for group in state.groups])

    @property
    def _bare(self) -> InnerTraining:
        """System with an empty optimizer: initialization, batches and gradients."""
        return InnerTraining(self.task, Fixed(optax.identity()))

    @property
    def _systems(self) -> list[InnerTraining]:
        return flat_systems(self.task, self.optimizers)


def _concatenate(groups: Sequence[InnerTrainingState]) -> InnerTrainingState:
    """Concatenate the states of all groups, without their optimizer states."""
    bare = [state.replace(opt_state=()) for state in groups]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *bare)


def _rows(tree: Any, i: int, num: int) -> Any:
    return jax.tree.map(lambda x: x[i * num : (i + 1) * num], tree)
