"""The one place where a system is unrolled."""

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
) -> tuple[State, Float[Array, " length"]]:
    """Runs `system` for `length` steps and returns ``(s_{t+length}, losses)``.

    Two calls with the same `key` see the same inputs, whatever their `theta`:
    antithetic pairs rely on it.

    Args:
        system: What is unrolled.
        data: What its `load` returned.
        theta: Its outer parameters.
        state: Where it starts.
        length: Steps to take.
        key: Fixes its inputs.
        remat: Whether backpropagation keeps every sqrt(length)-th state only and
            computes the others again: memory grows like sqrt(length).
    """

    def steps(state, keys):
        step = lambda state, key: system.step(
            theta, state, system.sample_input(data, state, key)
        )
        return jax.lax.scan(step, state, keys)

    keys = jax.random.split(key, length)
    if not remat:
        return steps(state, keys)
    # A divisor near the root if there is one: a remainder is a second program.
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
