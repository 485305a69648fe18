"""Influence balancing (Tallec & Ollivier, 2017, arXiv:1702.05043)."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Data, Horizon, Loss, UnrolledSystem


@dataclass(frozen=True)
class InfluenceBalancing(UnrolledSystem):
    """Linear system on which short truncation windows give biased gradients.

    ``s_i <- (s_i + s_{i+1}) / 2 + theta * sign_i`` with the loss ``(s_0 - 1)^2 / 2``.
    With the default sizes, `theta` raises ``s_0`` in the short term and lowers it in
    the long term. The fixed point of ``s_0`` is ``2 theta (2 num_positive - dim)``,
    which is ``-6 theta`` by default.
    """

    dim: int = 23
    """Dimension of the state."""
    num_positive: int = 10
    """Number of leading coordinates with sign +1; the sign of the others is -1."""

    @override
    def load(self) -> Data:
        return ()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.asarray(0.5, jnp.float32)

    @override
    def init_state(
        self,
        theta: Float[Array, ""],
        data: Data,
        horizon: Horizon,
        key: PRNGKeyArray,
    ) -> Float[Array, " dim"]:
        return jnp.ones(self.dim, jnp.float32)

    @override
    def sample_input(
        self, data: Data, state: Float[Array, " dim"], key: PRNGKeyArray
    ) -> None:
        return None

    @override
    def step(
        self, theta: Float[Array, ""], state: Float[Array, " dim"], x: None
    ) -> tuple[Float[Array, " dim"], Loss]:
        signs = jnp.where(jnp.arange(self.dim) < self.num_positive, 1.0, -1.0)
        shifted = jnp.append(state[1:], jnp.zeros(1, state.dtype))
        state = 0.5 * (state + shifted) + theta * signs
        return state, 0.5 * (state[0] - 1.0) ** 2
