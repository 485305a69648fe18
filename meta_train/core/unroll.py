"""Unrolling of systems."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tasks.base import Data, State, Theta, UnrolledSystem


def unroll(
    system: UnrolledSystem,
    data: Data,
    theta: Theta,
    state: State,
    length: int,
    key: PRNGKeyArray,
    *,
    remat: bool = False,
) -> tuple[State, Float[Array, "length ..."]]:
    """Unroll `system` for `length` steps.

    Two calls with the same `key` sample inputs with the same keys, whatever their
    `theta`. Antithetic pairs rely on these common random numbers.

    Args:
        system: System to unroll.
        data: Output of `system.load`.
        theta: Outer parameters.
        state: State ``s_t`` before the first step.
        length: Number of steps.
        key: Random key of the inputs.
        remat: Store only about every sqrt(length)-th state for backpropagation and
            recompute the others, so that memory grows as sqrt(length).

    Returns:
        The state ``s_{t+length}`` and the loss of each step, a scalar for all systems
        that are meta-trained.
    """

    def steps(state, keys):
        def step(state, key):
            return system.step(theta, state, system.sample_input(data, state, key))

        return jax.lax.scan(step, state, keys)

    keys = jax.random.split(key, length)
    if not remat:
        return steps(state, keys)
    # Prefer a divisor of `length` near its square root, because a remainder has to be
    # compiled as a second scan.
    root = math.isqrt(length)
    divisors = [n for n in range(root // 2 + 1, root + 1) if length % n == 0]
    chunk = divisors[-1] if divisors else root
    whole = length - length % chunk
    steps = jax.checkpoint(steps)
    state, losses = jax.lax.scan(steps, state, keys[:whole].reshape(-1, chunk))
    if whole == length:
        return state, losses.reshape(-1)
    state, rest = steps(state, keys[whole:])
    return state, jnp.concatenate([losses.reshape(-1), rest])
