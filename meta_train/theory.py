"""Closed forms for the variance of PES, corrected (table 2 of arXiv:2112.13835).

For one antithetic pair and losses that are linear in the parameters of each window.
There are T windows and P parameters; `grads[c, i]` is the gradient of the loss of
window i with respect to the parameters that were used in window c, zero for c > i.
Variances are total (traces of covariances), of the estimate of the summed loss; they
do not depend on the perturbations' standard deviation. The paper's forms miss terms:
these follow from Wick's theorem, and the tests hold them to simulation.
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
    """Returns the total variance of the PES estimate for given gradients."""
    num_windows, _, size = grads.shape
    until = jnp.cumsum(jnp.einsum("cip,cjp->cij", grads, grads), axis=0)
    sums = jnp.cumsum(grads, axis=0)  # [r, i]: over the windows up to r
    windows = jnp.arange(num_windows)
    last = jnp.minimum(windows[:, None], windows[None, :])  # of the common noise
    i, j = windows[:, None], windows[None, :]
    spread = size * (last + 1) * until[last, i, j]
    aligned = jnp.sum(sums[last, i] * sums[last, j], axis=-1)
    return jnp.sum(spread + aligned)


def relative_variance(structure: Structure, num_windows: int, size: int) -> float:
    """Returns variance over squared gradient for one of the paper's four structures.

    Either only a window's own parameters matter to its loss (diagonal) or all before
    it do as well (triangular); the gradients are all the same, or independent with
    mean zero, in which case both are expectations.
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
    """Returns gradients of the given structure; independent ones are normal."""
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
    """Returns what pairs estimate of the summed loss, drawn as PES draws them."""
    num_windows, _, size = grads.shape
    noise = jax.random.normal(key, (num_pairs, num_windows, size))
    # A pair's difference of losses over 2 std is the noise times the gradients.
    rises = jnp.einsum("ncp,cip->ni", noise, grads)
    return jnp.einsum("nip,ni->np", jnp.cumsum(noise, axis=1), rises)
