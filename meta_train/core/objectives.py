"""Meta-objectives: wrappers that replace the per-step loss of any system.

Estimators minimize the mean loss per step. Since a wrapper changes only the loss, every
estimator can minimize every objective.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from meta_train.core.wrapper import SystemWrapper
from tasks.base import Data, Horizon, Input, Loss, State, Theta, UnrolledSystem

Objective: TypeAlias = Literal["mean", "final", "log", "late", "late-log", "final-log"]


@dataclass(frozen=True)
class _Objective(SystemWrapper):
    """Wrapper that replaces the loss and keeps the wrapped state in its own."""

    @override
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        return self.system.sample_input(data, state.state, key)


class FinalLossState(struct.PyTreeNode):
    """State of `FinalLoss`.

    Attributes:
        state: State of the wrapped system.
        fixed: Input on which every loss of this episode is evaluated.
        previous: Loss of the previous step; 0 before the first step.
        horizon: Number of steps in this episode.
    """

    state: State
    fixed: Input
    previous: Float[Array, "..."]
    horizon: Float[Array, "..."]


@dataclass(frozen=True)
class FinalLoss(_Objective):
    """Final loss as a telescoping sum: the cost is ``T (loss_t - loss_{t-1})``.

    The costs of an episode sum to its last loss times the horizon ``T``, so their mean
    per step is the last loss. All losses of an episode are evaluated on one fixed
    input, because differences between losses on different inputs are noisy. The system
    itself still steps on newly sampled inputs.
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
class LogLoss(SystemWrapper):
    """Symmetric logarithm of the loss, ``sign(x) log(1 + |x| / epsilon)``.

    At a positive loss its gradient is that of ``log(x + epsilon)``. The objective thus
    measures relative changes, which makes tasks comparable and rewards further
    reductions of small losses.
    """

    epsilon: float = 1e-3
    """Loss below which the objective is approximately linear in the loss."""

    def __post_init__(self):
        if not self.epsilon > 0:
            raise ValueError(
                f"`epsilon` must be positive; got {self.epsilon}. Try epsilon=1e-3."
            )

    @override
    def step(self, theta: Theta, state: State, x: Input) -> tuple[State, Loss]:
        state, loss = self.system.step(theta, state, x)
        return state, jnp.sign(loss) * jnp.log1p(jnp.abs(loss) / self.epsilon)


class LateLossState(struct.PyTreeNode):
    """State of `LateLoss`.

    Attributes:
        state: State of the wrapped system.
        step: Number of steps taken in this episode.
        horizon: Number of steps in this episode.
    """

    state: State
    step: Float[Array, "..."]
    horizon: Float[Array, "..."]


@dataclass(frozen=True)
class LateLoss(_Objective):
    """Loss weighted linearly in time: step ``t = 1..T`` has weight ``2 t / (T + 1)``.

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
