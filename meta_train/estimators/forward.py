"""Base classes and linearization of forward-mode gradient estimators."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from typing_extensions import override

from meta_train.estimators.episodic import EpisodeEstimator
from meta_train.estimators.population import make_sample
from tasks.base import Data, Horizon, Input, Loss, State, Theta, UnrolledSystem


@dataclass(frozen=True)
class CarriesDerivative(UnrolledSystem):
    """Wrapper of a system whose state also carries ``d(state)/d(theta)``.

    The state must have a field `grad`, a flat array to which every step adds
    ``d(loss)/d(theta)``.
    """

    system: UnrolledSystem

    @override
    def load(self):
        return self.system.load()

    @override
    def init_theta(self, key):
        return self.system.init_theta(key)


@dataclass(frozen=True)
class ForwardEstimator(EpisodeEstimator):
    """Estimator that propagates ``d(state)/d(theta)`` forward along the unroll.

    No past states are stored, and the dependence on past windows is not truncated.
    """

    @abstractmethod
    def augment(self, system: UnrolledSystem) -> CarriesDerivative:
        """Wrap `system` so that its state carries its derivative."""

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
    """Linearized initial state.

    Attributes:
        state: Initial state ``s_0``.
        push: Jacobian-vector product, from tangents of `theta` to tangents of `state`.
        theta: Flat outer parameters.
        floats: Flat floating-point leaves of `state`.
    """

    state: State
    push: Callable
    theta: Float[Array, " size"]
    floats: Float[Array, " floats"]


def linearize_start(
    system: UnrolledSystem, theta: Theta, data: Data, horizon: Horizon, key: Array
) -> Start:
    """Initialize an episode and linearize its initial state in `theta`."""
    flat, unravel = ravel_pytree(theta)

    def init(flat):
        state = system.init_state(unravel(flat), data, horizon, key)
        return flatten_floats(state)[0], state

    floats, push, state = jax.linearize(init, flat, has_aux=True)
    return Start(state, push, flat, floats)


class Step(NamedTuple):
    """Linearized step.

    Attributes:
        state: State after the step.
        loss: Loss of the step.
        push: Jacobian-vector product, from tangents of ``(theta, floats)`` to tangents
            of the new state and the loss.
        theta: Flat outer parameters.
        floats: Flat floating-point leaves of the state before the step.
    """

    state: State
    loss: Loss
    push: Callable
    theta: Float[Array, " size"]
    floats: Float[Array, " floats"]


def linearize_step(
    system: UnrolledSystem, theta: Theta, state: State, x: Input
) -> Step:
    """Take a step and linearize it in `theta` and in the state."""
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
    """Flatten the floating-point leaves of `state` into one array.

    Counters and keys are part of a state, but not of its tangent space.

    Returns:
        The flat array, and a function that maps such an array to a state with the
        other leaves of `state`.
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
