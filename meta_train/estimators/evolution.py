"""What evolution strategies share: antithetic pairs, their noise and its weight."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from meta_train import sharding
from meta_train.estimators.base import Derivatives, Estimate
from meta_train.estimators.population import (
    PopulationEstimator,
    Sample,
    cap_losses,
    check_at_least_one,
    make_sample,
    update_population,
)
from tasks.base import Data, State, Theta, UnrolledSystem

Normalization: TypeAlias = Literal["none", "loss", "estimate"]


@dataclass(frozen=True)
class PairEstimator(PopulationEstimator):
    """A population of antithetic pairs, each perturbed by noise of its own.

    It asks only for values of the loss: the system may be anything that runs.
    """

    derivatives: ClassVar[Derivatives] = "none"
    num_unrolls: ClassVar[int] = 2

    num_pairs: int = 64
    """Antithetic pairs in the population; twice as many particles."""
    std: float = 0.01
    """Standard deviation of the perturbations of theta."""
    normalize: Normalization = "none"
    """Divide the estimate by the standard deviation of the losses of all particles, as
    in augmented random search, or by the RMS norm of the estimates of the pairs, so
    that every task of a mixture contributes the same amount of noise. Either makes the
    estimate independent of the scale of the loss, and keeps its direction only."""

    def __post_init__(self):
        check_at_least_one("num_pairs", self.num_pairs)
        check_std(self.std)

    @property
    @override
    def population_size(self) -> int:
        return self.num_pairs

    @abstractmethod
    def update_pair(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        noise: Theta,
        key: PRNGKeyArray,
    ) -> tuple[Sample, State]:
        """Unrolls one window of a pair, for which `noise` has just been drawn."""

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: State,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, State]:
        key_noise, key_pairs = jax.random.split(key)
        noise = draw_noise(theta, self.num_pairs, self.std, key_noise)
        update = lambda shared, *member: self.update_pair(system, *shared, *member)
        estimate, state = update_population(
            update,
            self.num_pairs,
            key_pairs,
            (data, theta),
            state,
            noise,
            one_by_one=sharding.prefer_one_by_one(state),
            deterministic=self.deterministic,
        )
        if self.is_normalized:
            name = {"loss": "loss_std", "estimate": "member_norm"}[self.normalize]
            scale = jnp.maximum(estimate.diagnostics[name], 1e-8)
            scaled = jax.tree.map(lambda g: g / scale, estimate.grad)
            estimate = estimate.replace(grad=scaled)
        return estimate, state

    @property
    def is_normalized(self) -> bool:
        """Whether the estimate is a direction only, which is biased."""
        return self.normalize != "none"


def check_std(std: float) -> None:
    """Raises unless perturbations can have this standard deviation."""
    if not 0 < std < float("inf"):
        raise ValueError(
            "`std` must be positive, since perturbations are divided by it; "
            f"got std={std}. Try std=0.01."
        )


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


def pair_sample(
    losses: Float[Array, "2 length"],
    noise: Theta,
    std: float,
    mean_length: int | float,
) -> Sample:
    """Weights `noise` by how much the positive partner lost to the negative one.

    Args:
        losses: Of both partners, at the steps that `noise` answers for.
        noise: The perturbations since the episode began.
        std: Standard deviation of one perturbation.
        mean_length: Steps that the loss is averaged over.
    """
    capped, _ = cap_losses(losses)
    weight = jnp.sum(capped[0] - capped[1]) / (2 * std**2 * mean_length)
    grad = jax.tree.map(lambda n: weight * n, noise)
    return make_sample(grad, losses, mean_length, accumulator=noise)
