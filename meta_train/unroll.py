"""The one place where a system is unrolled."""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from tasks.base import Data, State, Theta, UnrolledSystem


def unroll(
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    state: State,
    length: int,
    key: PRNGKeyArray,
) -> tuple[State, Float[Array, " length"]]:
    """Runs `system` for `length` steps and returns ``(s_{t+length}, losses)``.

    Two calls with the same `key` see the same inputs, whatever their `theta`:
    antithetic pairs rely on it.
    """

    def step(state, key):
        return system.step(theta, state, system.sample_input(data, key))

    return jax.lax.scan(step, state, jax.random.split(key, length))
