"""Meta-objectives: wrappers that replace the per-step loss of any system.

Estimators minimise the mean loss per step. A wrapper changes the loss, so every
estimator minimises every objective.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Data, Horizon, Input, Loss, State, Theta, UnrolledSystem

Objective: TypeAlias = Literal["mean", "final", "log", "late", "late-log", "final-log"]


@dataclass(frozen=True)
class _Wrapper(UnrolledSystem):
    """A system with the data and the outer parameters of another."""

    system: UnrolledSystem
    """System whose loss is replaced."""

    @override
    def load(self) -> Data:
        return self.system.load()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.system.init_theta(key)

    @override
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        return self.system.sample_input(data, state.state, key)


class FinalLossState(struct.PyTreeNode):
    """State of `FinalLoss`.

    Attributes:
        state: State of the wrapped system.
        fixed: Input on which every loss of this episode is evaluated.
        previous: Loss of the previous step; 0 before the first step.
        horizon: Steps in this episode.
    """

    state: State
    fixed: Input
    previous: Float[Array, "..."]
    horizon: Float[Array, "..."]


@dataclass(frozen=True)
class FinalLoss(_Wrapper):
    """Telescopes the final loss: step ``t`` costs ``T (loss_t - loss_{t-1})``.

    The costs of an episode sum to its last loss times the horizon, so their mean per
    step is the last loss. All losses of an episode are evaluated on one fixed input,
    as differences between changing inputs would be noise. The system itself still
    steps on changing inputs.
    """

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
    def step(
        self, theta: Theta, state: FinalLossState, x: Input
    ) -> tuple[FinalLossState, Loss]:
        following, loss = self.system.step(theta, state.state, x)
        fixed, horizon = jax.lax.stop_gradient((state.fixed, state.horizon))
        if jax.tree.leaves(fixed):
            _, loss = self.system.step(theta, state.state, fixed)
        cost = horizon * (loss - state.previous)
        return FinalLossState(following, fixed, loss, horizon), cost


@dataclass(frozen=True)
class LogLoss(_Wrapper):
    """Symmetric logarithm of the loss, ``sign(x) log(1 + |x| / epsilon)``.

    Its gradient at a positive loss is that of ``log(x + epsilon)``: relative changes
    count, so that tasks become comparable and small losses worth lowering further.
    """

    epsilon: float = 1e-3
    """Loss below which the logarithm becomes linear."""

    def __post_init__(self):
        if not self.epsilon > 0:
            raise ValueError(
                f"`epsilon` must be positive; got {self.epsilon}. Try epsilon=1e-3."
            )

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> State:
        return self.system.init_state(theta, data, horizon, key)

    @override
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        return self.system.sample_input(data, state, key)

    @override
    def step(self, theta: Theta, state: State, x: Input) -> tuple[State, Loss]:
        state, loss = self.system.step(theta, state, x)
        return state, jnp.sign(loss) * jnp.log1p(jnp.abs(loss) / self.epsilon)


class LateLossState(struct.PyTreeNode):
    """State of `LateLoss`.

    Attributes:
        state: State of the wrapped system.
        step: Steps taken in this episode.
        horizon: Steps in this episode.
    """

    state: State
    step: Float[Array, "..."]
    horizon: Float[Array, "..."]


@dataclass(frozen=True)
class LateLoss(_Wrapper):
    """Weights step ``t = 1..T`` by ``2 t / (T + 1)``: late steps count more.

    The weights of an episode have mean one.
    """

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> LateLossState:
        return LateLossState(
            state=self.system.init_state(theta, data, horizon, key),
            step=jnp.zeros((), jnp.float32),
            horizon=jnp.asarray(horizon, jnp.float32),
        )

    @override
    def step(
        self, theta: Theta, state: LateLossState, x: Input
    ) -> tuple[LateLossState, Loss]:
        following, loss = self.system.step(theta, state.state, x)
        step, horizon = jax.lax.stop_gradient((state.step + 1.0, state.horizon))
        weight = 2.0 * step / (horizon + 1.0)
        return LateLossState(following, step, horizon), weight * loss


OBJECTIVES: dict[Objective, Callable[[UnrolledSystem], UnrolledSystem]] = {
    "mean": lambda system: system,
    "final": FinalLoss,
    "log": LogLoss,
    "late": LateLoss,
    "late-log": lambda system: LateLoss(LogLoss(system)),
    "final-log": lambda system: FinalLoss(LogLoss(system)),
}
