"""What estimators share: a population along the leading axis, and its average."""

from abc import abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray
from typing_extensions import override

from meta_train import sharding
from meta_train.estimators.base import Estimate, GradientEstimator
from tasks.base import Data, State, Theta, UnrolledSystem


class Sample(struct.PyTreeNode):
    """What one member of the population says of the outer gradient.

    Attributes:
        grad: Its gradient estimate, always finite.
        loss: Its mean loss per step over the window; not a number if none was finite.
        squared_loss: The square of that, of both partners if it is a pair.
        squared_norm: Of its gradient estimate.
        diverged: Whether a loss or the estimate was not finite.
        accumulator: The noise that it answers for; ``()`` if none.
    """

    grad: Theta
    loss: Float[Array, "..."]
    squared_loss: Float[Array, "..."]
    squared_norm: Float[Array, "..."]
    diverged: Bool[Array, "..."]
    accumulator: Theta = ()


class PopulationEstimator(GradientEstimator):
    """Members that carry a state each, and start at different times."""

    @abstractmethod
    def init_member(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        end: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> State:
        """Returns what is carried before the first episode, which ends at `end`."""

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> State:
        num = self.population_size
        init = lambda end, key: self.init_member(system, data, theta, end, key)
        state = jax.vmap(init)(self.truncation.first_ends(num), _member_keys(key, num))
        return jax.tree.map(jnp.copy, state)  # donation forbids shared buffers


def check_at_least_one(name: str, num: int) -> None:
    """Raises unless there is anything to average over."""
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
    """Calls ``update(shared, state_i, *args_i, key_i)`` on all; averages samples.

    Args:
        update: Of one member; returns its sample and its new state.
        num: Members.
        key: They get a key each from it.
        shared: What all of them get.
        state: What each of them carries, along the leading axis.
        *args: What else each of them gets.
        one_by_one: Whether to take one after the other; otherwise all at once.
        deterministic: Whether the results must not depend, in any bit, on how many
            devices share the members.
    """
    rest = (*args, _member_keys(key, num))
    one = lambda shared, state, rest: update(shared, state, *rest)
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
    """Makes a sample that is finite whatever comes in.

    Args:
        grad: The member's gradient estimate.
        losses: Its losses as they came, of both partners if it is a pair.
        mean_length: Steps that the loss is averaged over.
        accumulator: The noise that it carries between windows.
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
    """Averages what one member says in the parts of a window, along the first axis."""
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
    """Averages over the leading axis."""
    num = samples.loss.shape[0]
    grad = jax.tree.map(lambda g: g.mean(axis=0), samples.grad)
    has_loss = ~jnp.isnan(samples.loss)
    accumulators = [
        jnp.square(x).reshape(num, -1).sum(axis=1)
        for x in jax.tree.leaves(samples.accumulator)
    ]
    # One reduction for all the scalars: on small problems each costs as much as one.
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
        # |mean|^2 over the variance of the mean: about 1 when all is noise.
        "signal_to_noise": jnp.where(variance > 0, squared_norm / variance, 0.0),
        "num_nonfinite": num * diverged,
        "member_norm": jnp.sqrt(second_moment),
        "accumulator_norm": jnp.sqrt(accumulator),
    }
    return Estimate(grad=grad, loss=loss, diagnostics=diagnostics)


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


def _member_keys(key: PRNGKeyArray, num: int) -> Key[Array, " num"]:
    # Folding in the index, not splitting: member i has its key whatever `num` is.
    members = sharding.constrain(jnp.arange(num))
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(members)
