"""Scaling of the compute and memory of estimators, from compiled programs."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.errors import lookup
from meta_train.analysis.diagnostics import Probe
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS
from tasks.base import Data, Horizon, Loss, State, UnrolledSystem


@dataclass(frozen=True)
class Sized(UnrolledSystem):
    """System with states and theta of any size, all of which affect the loss."""

    state_size: int
    """Number of entries of the state, S."""
    theta_size: int
    """Number of outer parameters, P."""

    @override
    def load(self) -> Data:
        return ()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, " size"]:
        return jnp.linspace(0.0, 0.1, self.theta_size)

    @override
    def init_state(
        self,
        theta: Float[Array, " size"],
        data: Data,
        horizon: Horizon,
        key: PRNGKeyArray,
    ) -> State:
        # Broadcast one draw: drawing the whole state would double its memory.
        return jax.random.uniform(key) + jnp.zeros(self.state_size)

    @override
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> None:
        return None

    @override
    def step(
        self, theta: Float[Array, " size"], state: State, x: None
    ) -> tuple[State, Loss]:
        push = jnp.mean(jnp.sin(theta))
        state = jnp.tanh(0.5 * state + push)
        return state, jnp.mean(state**2)


class Sizes(NamedTuple):
    """Sizes on which the cost of an estimator depends.

    Attributes:
        k: Window length.
        t: Horizon.
        n: Population size.
        s: Size of the state.
        p: Size of theta.
    """

    k: int = 8
    t: int = 256
    n: int = 4
    s: int = 512
    p: int = 512


def costs(name: str, sizes: Sizes) -> Float[np.ndarray, "2"]:
    """Compute FLOPs and bytes of one estimate from the compiled program."""
    system = Sized(sizes.s, sizes.p)
    kind = lookup("estimator", name, ESTIMATORS)
    estimator = kind(Truncation(length=sizes.k, horizon=sizes.t)).resized(sizes.n)
    theta = system.init_theta(jax.random.key(0))
    cost = Probe(estimator, system, (), theta).cost
    return np.array([cost.flops, cost.bytes])


def exponents(
    name: str, axis: str, low: int, high: int, **others: int
) -> Float[np.ndarray, "2"]:
    """Compute the scaling exponents of FLOPs and bytes between two sizes.

    Args:
        name: Name of the estimator.
        axis: Field of `Sizes` that varies.
        low: Its first value.
        high: Its second value.
        **others: The other sizes, where they differ from the defaults.
    """
    sizes = Sizes(**others)
    few, many = (costs(name, sizes._replace(**{axis: x})) for x in (low, high))
    return np.log(many / few) / np.log(high / low)
