"""The final loss as a sum over steps, so that online estimators can minimise it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Data, Horizon, Input, Loss, State, Theta, UnrolledSystem


class FinalLossState(struct.PyTreeNode):
    """A system's state and what its next loss is compared with.

    Attributes:
        state: The system's state.
        fixed: The input that every loss of this episode is taken on.
        previous: The loss of the step before; 0 before the first step.
        horizon: Steps in the episode.
    """

    state: State
    fixed: Input
    previous: Float[Array, "..."]
    horizon: Float[Array, "..."]


@dataclass(frozen=True)
class FinalLoss(UnrolledSystem):
    """`system`, each step of which costs what it adds to the loss, times the horizon.

    The costs of an episode add up to its last loss, so their mean per step is that
    loss. They are taken on one input that is fixed for the episode: on changing ones
    the differences would be noise. The system still steps on changing inputs.
    """

    system: UnrolledSystem

    @override
    def load(self) -> Data:
        return self.system.load()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.system.init_theta(key)

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> FinalLossState:
        key_state, key_fixed = jax.random.split(key)
        state = self.system.init_state(theta, data, horizon, key_state)
        return FinalLossState(
            state=state,
            fixed=self.system.sample_input(data, state, key_fixed),
            previous=jnp.zeros((), jnp.float32),
            horizon=jnp.asarray(horizon, jnp.float32),
        )

    @override
    def sample_input(
        self, data: Data, state: FinalLossState, key: PRNGKeyArray
    ) -> Input:
        return self.system.sample_input(data, state.state, key)

    @override
    def step(
        self, theta: Theta, state: FinalLossState, x: Input
    ) -> tuple[FinalLossState, Loss]:
        following, loss = self.system.step(theta, state.state, x)
        fixed, horizon = jax.lax.stop_gradient((state.fixed, state.horizon))
        if jax.tree.leaves(fixed):
            _, loss = self.system.step(theta, state.state, fixed)
        cost = horizon * (loss - state.previous)
        return FinalLossState(following, fixed, loss, horizon), cost
