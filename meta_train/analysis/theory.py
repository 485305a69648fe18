"""Corrected closed forms of the variance of PES (table 2 of arXiv:2112.13835).

They hold for one antithetic pair and losses that are linear in the parameters of each
window. There are T windows and P parameters. `grads[c, i]` is the gradient of the loss
of window i with respect to the parameters used in window c, and zero for c > i.

Variances are total variances (traces of covariances) of the gradient estimate of the
summed loss. They do not depend on the standard deviation of the perturbations. The
closed forms in the paper lack some terms. Those given here follow from Wick's theorem,
and the tests compare them with simulations.
"""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Structure: TypeAlias = Literal[
    "diagonal, identical",
    "diagonal, independent",
    "triangular, identical",
    "triangular, independent",
]


def pes_variance(grads: Float[Array, "windows windows size"]) -> Float[Array, ""]:
    """Compute the total variance of the PES estimate for given gradients."""
    num_windows, _, size = grads.shape
    until = jnp.cumsum(jnp.einsum("cip,cjp->cij", grads, grads), axis=0)
    sums = jnp.cumsum(grads, axis=0)  # [r, i]: sum over windows c <= r
    windows = jnp.arange(num_windows)
    last = jnp.minimum(windows[:, None], windows[None, :])  # last common noise
    i, j = windows[:, None], windows[None, :]
    spread = size * (last + 1) * until[last, i, j]
    aligned = jnp.sum(sums[last, i] * sums[last, j], axis=-1)
    return jnp.sum(spread + aligned)


def relative_variance(structure: Structure, num_windows: int, size: int) -> float:
    """Compute the ratio of the variance of PES to the squared norm of the gradient.

    Args:
        structure: One of the four cases of the paper. The loss of a window depends on
            the parameters of that window only (diagonal), or on those of all earlier
            windows too (triangular). The gradients are all equal (identical), or
            independent with mean zero (independent). In the latter case the ratio is
            that of the expectations.
        num_windows: Number of windows T.
        size: Number of parameters P.
    """
    t, p = num_windows, size
    return {
        "diagonal, identical": p / 2 + p / (2 * t) + 1 / t,
        "diagonal, independent": p * (t + 1) / 2 + 1,
        "triangular, identical": 2 / 3 * (p + 1) * (t * t + t + 1) / (t * (t + 1)),
        "triangular, independent": (p * (2 * t + 1) + 3) / 3,
    }[structure]


def gradient_matrix(
    structure: Structure, num_windows: int, size: int, key: PRNGKeyArray
) -> Float[Array, "windows windows size"]:
    """Generate gradients of the given structure: all ones, or standard normal."""
    shape = (num_windows, num_windows, size)
    mask, kind = structure.split(", ")
    values = jnp.ones(shape)
    if kind == "independent":
        values = jax.random.normal(key, shape)
    ones = jnp.ones((num_windows, num_windows))
    keep = jnp.eye(num_windows) if mask == "diagonal" else jnp.triu(ones)
    return keep[:, :, None] * values


def simulate(
    grads: Float[Array, "windows windows size"], num_pairs: int, key: PRNGKeyArray
) -> Float[Array, "pairs size"]:
    """Simulate PES gradient estimates of the summed loss, one per antithetic pair."""
    num_windows, _, size = grads.shape
    noise = jax.random.normal(key, (num_pairs, num_windows, size))
    # For linear losses, (loss_pos - loss_neg) / (2 std) is the inner product of the
    # standard normal noise and the gradients.
    rises = jnp.einsum("ncp,cip->ni", noise, grads)
    return jnp.einsum("nip,ni->np", jnp.cumsum(noise, axis=1), rises)
