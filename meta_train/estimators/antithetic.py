"""Base class, noise and pair estimates of antithetic evolution strategies."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from meta_train.devices import sharding
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
    """Estimator with a population of independently perturbed antithetic pairs.

    Only loss values are needed, so the system need not be differentiable.
    """

    derivatives: ClassVar[Derivatives] = "none"
    num_unrolls: ClassVar[int] = 2
    population_field: ClassVar[str] = "num_pairs"

    num_pairs: int = 64
    """Number of antithetic pairs; the population has two particles per pair."""
    std: float = 0.01
    """Standard deviation of the perturbations of theta."""
    normalize: Normalization = "none"
    """Divide the estimate by the standard deviation of all particles' losses (`loss`,
    as in augmented random search) or by the RMS norm of the pairs' estimates
    (`estimate`, so that every task of a mixture contributes equal noise). Either makes
    the estimate invariant to the scale of the loss and preserves only its direction."""

    def __post_init__(self):
        check_at_least_one("num_pairs", self.num_pairs)
        check_std(self.std)

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
        """Unroll one window of one pair.

        Args:
            system: System to unroll.
            data: Output of `system.load`.
            theta: Unperturbed outer parameters.
            state: State of this pair.
            noise: New perturbation of `theta`, drawn for this update.
            key: Random key of this pair.

        Returns:
            The pair's gradient sample and its new state.
        """

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

        def update(shared, *member):
            return self.update_pair(system, *shared, *member)

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
            spread = estimate.diagnostics[name]  # NaN if no loss is finite
            scale = jnp.where(jnp.isfinite(spread), jnp.maximum(spread, 1e-8), 1.0)
            scaled = jax.tree.map(lambda g: g / scale, estimate.grad)
            estimate = estimate.replace(grad=scaled)
        return estimate, state

    @property
    def is_normalized(self) -> bool:
        """Whether the estimate is normalized, which makes it biased."""
        return self.normalize != "none"


def check_std(std: float) -> None:
    """Validate the standard deviation of the perturbations.

    Raises:
        ValueError: If `std` is not positive and finite.
    """
    if not 0 < std < float("inf"):
        raise ValueError(
            "`std` must be positive, since perturbations are divided by it; "
            f"got std={std}. Try std=0.01."
        )


def draw_noise(theta: Theta, num: int, std: float, key: PRNGKeyArray) -> Theta:
    """Draw a Gaussian perturbation of `theta` for each member of the population.

    One draw for all members is several times faster than one key per member. The noise
    of a member depends on its index, but not on `num`.

    Args:
        theta: Outer parameters.
        num: Population size.
        std: Standard deviation of the noise.
        key: Random key.

    Returns:
        Pytree with the structure of `theta` and a leading axis of length `num`.
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
    """Stack ``theta + noise`` and ``theta - noise`` along a new leading axis."""
    return jax.tree.map(lambda t, n: jnp.stack([t + n, t - n]), theta, noise)


def pair_sample(
    losses: Float[Array, "2 length"],
    noise: Theta,
    std: float,
    mean_length: int | float,
) -> Sample:
    """Compute the antithetic ES gradient sample of one pair.

    The gradient is ``noise * sum_t(loss_pos - loss_neg) / (2 std^2 mean_length)``.

    Args:
        losses: Losses of the positive and the negative partner.
        noise: Perturbation of `theta`; for PES, the sum over the episode so far.
        std: Standard deviation of one perturbation.
        mean_length: Number of steps by which the sum of the losses is divided.
    """
    capped, _ = cap_losses(losses)
    weight = jnp.sum(capped[0] - capped[1]) / (2 * std**2 * mean_length)
    grad = jax.tree.map(lambda n: weight * n, noise)
    return make_sample(grad, losses, mean_length, accumulator=noise)
