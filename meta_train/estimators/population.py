"""Populations of members along a leading axis and their average."""

from abc import abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray
from typing_extensions import override

from meta_train.devices import sharding
from meta_train.estimators.base import Estimate, GradientEstimator
from tasks.base import Data, State, Theta, UnrolledSystem


class Sample(struct.PyTreeNode):
    """Gradient sample of one member of the population.

    Attributes:
        grad: Gradient estimate; always finite.
        loss: Mean loss per step over the window; NaN if no loss was finite.
        squared_loss: Squared mean loss per step, averaged over partners.
        squared_norm: Squared norm of `grad`.
        diverged: Whether a loss or the gradient estimate was not finite.
        accumulator: Noise by which the losses were weighted; ``()`` if none.
    """

    grad: Theta
    loss: Float[Array, "..."]
    squared_loss: Float[Array, "..."]
    squared_norm: Float[Array, "..."]
    diverged: Bool[Array, "..."]
    accumulator: Theta = ()


class PopulationEstimator(GradientEstimator):
    """Estimator with an independent state per member and staggered episodes."""

    @abstractmethod
    def init_member(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        end: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> State:
        """Initialize the state of one member, whose first episode ends at `end`."""

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> State:
        num = self.population_size

        def init(end, key):
            return self.init_member(system, data, theta, end, key)

        state = jax.vmap(init)(self.truncation.first_ends(num), _member_keys(key, num))
        return jax.tree.map(jnp.copy, state)  # Donated buffers must not alias.


def check_at_least_one(name: str, num: int) -> None:
    """Validate a population size.

    Raises:
        ValueError: If `num` is less than 1 or more than 2**24.
    """
    if num > 2**24:
        raise ValueError(
            f"`{name}` must be at most 2**24; got {name}={num}. Try {name}=1024."
        )
    if num < 1:
        raise ValueError(
            f"`{name}` must be at least 1; got {name}={num}. Try {name}=16."
        )


def update_population(
    update: Callable[..., tuple[Sample, State]],
    num: int,
    key: PRNGKeyArray,
    shared: State,
    state: State,
    *args: State,
    one_by_one: bool = False,
    deterministic: bool = False,
) -> tuple[Estimate, State]:
    """Call ``update(shared, state_i, *args_i, key_i)`` for all members and average.

    Args:
        update: Update of one member; returns its sample and its new state.
        num: Population size.
        key: Random key from which one key per member is derived.
        shared: Argument common to all members.
        state: State of the members, along the leading axis.
        *args: Further arguments with a leading axis of members.
        one_by_one: Map over members sequentially instead of vectorizing.
        deterministic: Make results bitwise independent of the number of devices. This
            implies a sequential map and all-gathers the samples.

    Returns:
        The average of the samples and the new states.
    """
    rest = (*args, _member_keys(key, num))

    def one(shared, state, rest):
        return update(shared, state, *rest)

    if not (one_by_one or deterministic):
        samples, state = jax.vmap(one, (None, 0, 0))(shared, state, rest)
        return average(samples), state
    samples, state = sharding.map_one_by_one(
        one, shared, state, rest, isolated=deterministic
    )
    return average(sharding.gather(samples) if deterministic else samples), state


def make_sample(
    grad: Theta,
    losses: Float[Array, "*n length"],
    mean_length: int | float,
    accumulator: Theta = (),
) -> Sample:
    """Make a sample; replace a non-finite gradient by zero and cap non-finite losses.

    Args:
        grad: Gradient estimate of the member.
        losses: Losses before capping, with a leading axis of partners for a pair.
        mean_length: Number of steps by which the sum of the losses is divided.
        accumulator: Noise by which the losses were weighted; ``()`` if none.
    """
    capped, diverged = cap_losses(losses)
    each = capped.reshape(-1, losses.shape[-1]).sum(axis=1) / mean_length
    squared_norm = optax.tree.norm(grad, squared=True)
    usable = jnp.isfinite(squared_norm)
    return Sample(
        grad=jax.tree.map(lambda g: jnp.where(usable, g, 0.0), grad),
        loss=jnp.where(jnp.isfinite(losses).any(), each.mean(), jnp.nan),
        squared_loss=jnp.square(each).mean(),
        squared_norm=jnp.where(usable, squared_norm, 0.0),
        diverged=diverged | ~usable,
        accumulator=accumulator,
    )


def merge(samples: Sample) -> Sample:
    """Average one member's samples over the parts of a window, the leading axis."""
    grad = jax.tree.map(lambda g: g.mean(axis=0), samples.grad)
    return Sample(
        grad=grad,
        loss=jnp.nanmean(samples.loss),
        squared_loss=samples.squared_loss.mean(),
        squared_norm=optax.tree.norm(grad, squared=True),
        diverged=samples.diverged.any(),
        accumulator=jax.tree.map(lambda a: a[-1], samples.accumulator),
    )


def average(samples: Sample) -> Estimate:
    """Average samples over the population, the leading axis.

    Members without a finite loss are excluded from the loss statistics.
    """
    num = samples.loss.shape[0]
    grad = jax.tree.map(lambda g: g.mean(axis=0), samples.grad)
    has_loss = ~jnp.isnan(samples.loss)
    accumulators = [
        jnp.square(x).reshape(num, -1).sum(axis=1)
        for x in jax.tree.leaves(samples.accumulator)
    ]
    # One fused reduction, because each separate one has a fixed overhead that
    # dominates on small problems.
    loss, share, squared_loss, second_moment, diverged, accumulator = jnp.stack(
        [
            jnp.where(has_loss, samples.loss, 0.0),
            has_loss.astype(jnp.float32),
            jnp.where(has_loss, samples.squared_loss, 0.0),
            samples.squared_norm,
            samples.diverged.astype(jnp.float32),
            sum(accumulators, start=jnp.zeros(num)),
        ]
    ).mean(axis=1)
    squared_norm = optax.tree.norm(grad, squared=True)
    variance = jnp.maximum(second_moment - squared_norm, 0.0) / max(num - 1, 1)
    loss, squared_loss = loss / share, squared_loss / share
    diagnostics = {
        "loss_std": jnp.sqrt(jnp.maximum(squared_loss - loss**2, 0.0)),
        # Ratio of |mean|^2 to the variance of the mean: about 1 for pure noise.
        "signal_to_noise": jnp.where(variance > 0, squared_norm / variance, 0.0),
        "num_nonfinite": num * diverged,
        "member_norm": jnp.sqrt(second_moment),
        "accumulator_norm": jnp.sqrt(accumulator),
    }
    return Estimate(grad=grad, loss=loss, diagnostics=diagnostics)


def cap_losses(
    losses: Float[Array, "*n length"],
) -> tuple[Float[Array, "*n length"], Bool[Array, ""]]:
    """Replace non-finite losses by the largest finite loss, or by 0 if there is none.

    If one partner of a pair diverges, the difference of the losses thus still points
    away from it. The caller must restart the episode.

    Returns:
        The capped losses, and whether any loss was not finite.
    """
    finite = jnp.isfinite(losses)
    largest = jnp.max(jnp.where(finite, losses, -jnp.inf))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return jnp.where(finite, losses, largest), ~jnp.all(finite)


def _member_keys(key: PRNGKeyArray, num: int) -> Key[Array, " num"]:
    # `fold_in` makes the key of member i independent of `num`.
    members = sharding.constrain(jnp.arange(num))
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(members)
