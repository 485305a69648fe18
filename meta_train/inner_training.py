"""Inner training as an unrolled system: ``(task, learned optimizer) -> system``."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Int, PRNGKeyArray
from typing_extensions import override

from lopt.base import LearnedOptimizer
from tasks.base import Data, Horizon, Input, Loss, Params, Task, Theta, UnrolledSystem


class InnerTrainingState(struct.PyTreeNode):
    """What one inner training run carries from step to step."""

    params: Params
    opt_state: optax.OptState
    horizon: Int[Array, "..."]


@dataclass(frozen=True)
class InnerTraining(UnrolledSystem):
    """One step of the system is one update of the task's parameters.

    The loss of a step is the training loss that its gradient was taken of.
    """

    task: Task
    optimizer: LearnedOptimizer

    @override
    def load(self) -> Data:
        return self.task.load()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.optimizer.init_theta(key)

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> InnerTrainingState:
        params = self.task.init_params(key)
        opt_state = self.optimizer.as_optax(theta, horizon).init(params)
        return InnerTrainingState(
            params=params, opt_state=opt_state, horizon=jnp.asarray(horizon, jnp.int32)
        )

    @override
    def sample_input(
        self, data: Data, state: InnerTrainingState, key: PRNGKeyArray
    ) -> Input:
        return self.task.sample_batch(data, key)

    @override
    def step(
        self, theta: Theta, state: InnerTrainingState, x: Input
    ) -> tuple[InnerTrainingState, Loss]:
        optimizer = self.optimizer.as_optax(theta, state.horizon)
        loss, grads = jax.value_and_grad(self.task.loss)(state.params, x)
        updates, opt_state = optimizer.update(
            grads, state.opt_state, state.params, value=loss
        )
        params = optax.apply_updates(state.params, updates)
        return state.replace(params=params, opt_state=opt_state), loss
