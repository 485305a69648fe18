"""What estimators share: a population along the leading axis, and its average."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray

from meta_train import sharding
from meta_train.estimators.base import Estimate
from tasks.base import State, Theta


class Sample(struct.PyTreeNode):
    """What one member of the population says of the outer gradient.

    Attributes:
        grad: Its gradient estimate.
        loss: Its mean loss per step over the window.
        diverged: Whether a loss was not finite.
        accumulator: The noise it carries between windows; ``()`` if none.
    """

    grad: Theta
    loss: Float[Array, "..."]
    diverged: Bool[Array, "..."]
    accumulator: Theta = ()


def check_population(num: int, std: float | None = None, *, name: str) -> None:
    """Raises if a population of `num` perturbed by `std` makes no sense."""
    if num < 1:
        raise ValueError(
            f"`{name}` must be at least 1; got {name}={num}. Try {name}=16."
        )
    if std is not None and not 0 < std < float("inf"):
        raise ValueError(
            "`std` must be positive, since perturbations are divided by it; "
            f"got std={std}. Try std=0.01."
        )


def init_population(init: Callable, num: int, key: PRNGKeyArray, *args: Array) -> State:
    """Stacks ``init(*args[i], key_i)`` over the population."""
    state = jax.vmap(init)(*args, _member_keys(key, num))
    return jax.tree.map(jnp.copy, state)  # donation forbids shared buffers


def update_population(
    update: Callable[..., tuple[Sample, State]],
    num: int,
    key: PRNGKeyArray,
    *args: State,
) -> tuple[Estimate, State]:
    """Calls ``update(*args[i], key_i)`` on the population and averages the samples."""
    samples, state = jax.vmap(update)(*args, _member_keys(key, num))
    return average(samples), state


def average(samples: Sample) -> Estimate:
    """Averages over the leading axis; nothing that is not finite gets through."""
    num = samples.loss.shape[0]
    squared_norms = _squared_norms(samples.grad, num)
    finite = jnp.isfinite(squared_norms)
    grad = jax.tree.map(
        lambda g: jnp.where(_like(finite, g), g, 0.0).mean(axis=0), samples.grad
    )
    # One reduction for all the scalars: on small problems each costs as much as one.
    loss, second_moment, share_diverged, accumulator = jnp.stack(
        [
            samples.loss,
            jnp.where(finite, squared_norms, 0.0),
            samples.diverged.astype(jnp.float32),
            _squared_norms(samples.accumulator, num),
        ]
    ).mean(axis=1)
    squared_norm = optax.tree.norm(grad, squared=True)
    variance = jnp.maximum(second_moment - squared_norm, 0.0) / max(num - 1, 1)
    diagnostics = {
        "grad_norm": jnp.sqrt(squared_norm),
        # |mean|^2 over the variance of the mean: about 1 when all is noise.
        "signal_to_noise": jnp.where(variance > 0, squared_norm / variance, 0.0),
        "num_nonfinite": num * share_diverged,
        "accumulator_norm": jnp.sqrt(accumulator),
    }
    return Estimate(grad=grad, loss=loss, diagnostics=diagnostics)


def _squared_norms(tree: Theta, num: int) -> Float[Array, " num"]:
    leaves = [jnp.square(x).reshape(num, -1).sum(axis=1) for x in jax.tree.leaves(tree)]
    return sum(leaves, start=jnp.zeros(num))


def _like(mask: Bool[Array, " num"], x: Array) -> Bool[Array, "num ..."]:
    """Returns `mask` with axes of length one, so that it selects rows of `x`."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def draw_noise(theta: Theta, num: int, std: float, key: PRNGKeyArray) -> Theta:
    """Draws a perturbation of `theta` for each member of the population.

    All at once, which is several times faster than by a key each; a member's noise
    still depends on its index alone, not on how many there are.
    """
    leaves, treedef = jax.tree.flatten(theta)
    ends = np.cumsum([x.size for x in leaves])
    flat = sharding.constrain(std * jax.random.normal(key, (num, int(ends[-1]))))
    noise = [
        part.reshape(num, *x.shape).astype(x.dtype)
        for part, x in zip(jnp.split(flat, ends[:-1], axis=1), leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, noise)


def antithetic(theta: Theta, noise: Theta) -> Theta:
    """Returns ``theta + noise`` stacked on ``theta - noise``."""
    return jax.tree.map(lambda t, n: jnp.stack([t + n, t - n]), theta, noise)


def cap_losses(
    losses: Float[Array, "*n length"],
) -> tuple[Float[Array, "*n length"], Bool[Array, ""]]:
    """Replaces losses that are not finite by the largest finite one among them.

    A pair of which one partner diverges then still says which way not to go; the
    caller restarts it. Also returns whether there were any.
    """
    finite = jnp.isfinite(losses)
    largest = jnp.max(jnp.where(finite, losses, -jnp.inf))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return jnp.where(finite, losses, largest), ~jnp.all(finite)


def pair_sample(
    losses: Float[Array, "2 length"], noise: Theta, std: float, mean_length: int | float
) -> tuple[Sample, Bool[Array, ""]]:
    """Weights `noise` by how much the positive partner lost to the negative one.

    Args:
        losses: Of both partners, at the steps that `noise` answers for.
        noise: The perturbations since the episode began.
        std: Standard deviation of one perturbation.
        mean_length: Steps that the loss is averaged over.
    """
    losses, diverged = cap_losses(losses)
    difference = jnp.sum(losses[0] - losses[1]) / mean_length
    grad = jax.tree.map(lambda n: n * (difference / (2 * std**2)), noise)
    loss = losses.mean(axis=0).sum() / mean_length
    return Sample(grad=grad, loss=loss, diverged=diverged, accumulator=noise), diverged


def _member_keys(key: PRNGKeyArray, num: int) -> Key[Array, " num"]:
    # Folding in the index, not splitting: member i has its key whatever `num` is.
    members = sharding.constrain(jnp.arange(num))
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(members)
