"""What forward-mode estimators share: a system that carries its own derivative."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from typing_extensions import override

from meta_train.estimators.differentiation import EpisodeEstimator
from meta_train.estimators.population import make_sample
from tasks.base import Data, Horizon, Input, Loss, State, Theta, UnrolledSystem


@dataclass(frozen=True)
class CarriesDerivative(UnrolledSystem):
    """A system whose state also has its derivative, and `grad`, that of its losses."""

    system: UnrolledSystem

    @override
    def load(self):
        return self.system.load()

    @override
    def init_theta(self, key):
        return self.system.init_theta(key)


@dataclass(frozen=True)
class ForwardEstimator(EpisodeEstimator):
    """Differentiates along with the unroll: nothing of the past is kept or blind."""

    @abstractmethod
    def augment(self, system: UnrolledSystem) -> CarriesDerivative:
        """Returns `system` with its derivative as part of its state."""

    @property
    @override
    def is_unbiased(self):
        return True

    @override
    def init_member(self, system, data, theta, end, key):
        return self.truncation.init(self.augment(system), data, theta, end, key)

    @override
    def update_episode(self, system, data, theta, state, key):
        length = self.truncation.length
        begun = state.state.replace(grad=jnp.zeros_like(state.state.grad))
        following, losses = self.truncation.advance(
            self.augment(system), data, theta, state.replace(state=begun), key
        )
        _, unravel = ravel_pytree(theta)
        sample = make_sample(unravel(following.state.grad / length), losses, length)
        return sample, following.restart_if(sample.diverged)


class Start(NamedTuple):
    """``s_0`` and its derivative, from tangents of theta to tangents of the state."""

    state: State
    push: Callable
    theta: Float[Array, " size"]
    floats: Float[Array, " floats"]


def linearize_start(
    system: UnrolledSystem, theta: Theta, data: Data, horizon: Horizon, key: Array
) -> Start:
    """Starts an episode and differentiates its first state."""
    flat, unravel = ravel_pytree(theta)

    def init(flat):
        state = system.init_state(unravel(flat), data, horizon, key)
        return flatten_floats(state)[0], state

    floats, push, state = jax.linearize(init, flat, has_aux=True)
    return Start(state, push, flat, floats)


class Step(NamedTuple):
    """A step and its derivative, from tangents of (theta, state) to (state, loss)."""

    state: State
    loss: Loss
    push: Callable
    theta: Float[Array, " size"]
    floats: Float[Array, " floats"]


def linearize_step(
    system: UnrolledSystem, theta: Theta, state: State, x: Input
) -> Step:
    """Takes a step and differentiates it."""
    flat, unravel = ravel_pytree(theta)
    floats, put_back = flatten_floats(state)

    def step(flat, floats):
        following, loss = system.step(unravel(flat), put_back(floats), x)
        return (flatten_floats(following)[0], loss), following

    (_, loss), push, following = jax.linearize(step, flat, floats, has_aux=True)
    return Step(following, loss, push, flat, floats)


def flatten_floats(
    state: State,
) -> tuple[Float[Array, " size"], Callable[[Float[Array, " size"]], State]]:
    """Returns the part of `state` that has a derivative, and how to put it back.

    Counters and keys are part of a state, but not of its tangent space.
    """
    leaves, treedef = jax.tree.flatten(state)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    flat, unravel = ravel_pytree(
        [leaf for leaf, yes in zip(leaves, is_float, strict=True) if yes]
    )

    def put_back(flat):
        floats = iter(unravel(flat))
        return jax.tree.unflatten(
            treedef,
            [
                next(floats) if yes else leaf
                for leaf, yes in zip(leaves, is_float, strict=True)
            ],
        )

    return flat, put_back
