"""Guided evolution strategies (Maheswaranathan et al., 2019, arXiv:1806.10230)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from meta_train.estimators.antithetic import (
    antithetic,
    check_std,
    draw_noise,
    pair_sample,
)
from meta_train.estimators.base import Derivatives, Estimate, GradientEstimator
from meta_train.estimators.population import (
    check_at_least_one,
    update_population,
)
from tasks.base import Data, Theta, UnrolledSystem


@dataclass(frozen=True)
class GuidedES(GradientEstimator):
    """Full ES with a search distribution elongated along its last estimates.

    Whole episodes are unrolled. Noise has the covariance ``std^2 M`` with

        ``M = alpha/P I + (1 - alpha)/k U U'``,

    where ``P`` is the number of outer parameters and the columns of ``U`` are an
    orthonormal basis of the last ``k`` estimates. The estimate has the expectation
    ``beta M grad``: a preconditioned gradient, hence biased.
    """

    derivatives: ClassVar[Derivatives] = "none"
    num_unrolls: ClassVar[int] = 2
    population_field: ClassVar[str] = "num_pairs"

    num_pairs: int = 64
    """Number of antithetic pairs; the population has two particles per pair."""
    std: float = 0.1
    """RMS norm of a perturbation of theta, once the last estimates span k dimensions.
    Before that, perturbations are shorter."""
    num_guides: int = 4
    """Number of past estimates that span the guiding subspace (k in the paper)."""
    alpha: float = 0.5
    """Fraction of the variance that is isotropic, in (0, 1]."""
    beta: float = 2.0
    """Factor by which the estimate is scaled."""

    def __post_init__(self):
        check_at_least_one("num_pairs", self.num_pairs)
        check_at_least_one("num_guides", self.num_guides)
        check_std(self.std)
        if not 0 < self.alpha <= 1:
            raise ValueError(
                "`alpha` must lie in (0, 1], or nothing outside the subspace is ever "
                f"found; got alpha={self.alpha}. Try alpha=0.5."
            )

    @property
    @override
    def is_unbiased(self) -> bool:
        return False

    @property
    @override
    def steps_per_update(self) -> float:
        return self.truncation.horizon

    @override
    def init(
        self, system: UnrolledSystem, data: Data, theta: Theta, key: PRNGKeyArray
    ) -> Float[Array, "pairs k size"]:
        """Initialize the guides to zero.

        Every pair has a copy of the guides, so that the state can be sharded over
        pairs like that of other estimators.
        """
        flat, _ = ravel_pytree(theta)
        return jnp.zeros((self.num_pairs, self.num_guides, flat.size), flat.dtype)

    @override
    def update(
        self,
        system: UnrolledSystem,
        data: Data,
        theta: Theta,
        state: Float[Array, "pairs k size"],
        key: PRNGKeyArray,
    ) -> tuple[Estimate, Float[Array, "pairs k size"]]:
        key_all, key_along, key_pairs = jax.random.split(key, 3)
        mean_horizon = self.truncation.mean_horizon()
        std = self.std / math.sqrt(self.beta)  # scales the gradient by `beta`

        def update_pair(shared, _, noise, key):
            data, theta = shared
            losses = jax.vmap(
                lambda theta: self.truncation.whole_episode(system, data, theta, key)
            )(antithetic(theta, noise))
            return pair_sample(losses, noise, std, mean_horizon), ()

        noise = self._draw_noise(theta, state[0], key_all, key_along)
        estimate, _ = update_population(
            update_pair,
            self.num_pairs,
            key_pairs,
            (data, theta),
            (),
            noise,
            deterministic=self.deterministic,
        )
        newest = jnp.broadcast_to(ravel_pytree(estimate.grad)[0], state[:, :1].shape)
        return estimate, jnp.concatenate([state[:, 1:], newest], axis=1)

    def _draw_noise(
        self,
        theta: Theta,
        guides: Float[Array, "k size"],
        key_all: PRNGKeyArray,
        key_along: PRNGKeyArray,
    ) -> Theta:
        flat, unravel = ravel_pytree(theta)
        basis = orthonormal(guides)
        everywhere = draw_noise(theta, self.num_pairs, self.std, key_all)
        along = self.std * jax.random.normal(
            key_along, (self.num_pairs, basis.shape[0])
        )
        share = jnp.sqrt((1 - self.alpha) / self.num_guides)
        scale = jnp.sqrt(self.alpha / flat.size)
        return jax.tree.map(
            lambda a, b: scale * a + share * b,
            everywhere,
            jax.vmap(unravel)(along @ basis),
        )


def orthonormal(guides: Float[Array, "k size"]) -> Float[Array, "rank size"]:
    """Compute an orthonormal basis of the span of `guides`.

    Args:
        guides: Past estimates; all zero before the first one.

    Returns:
        ``min(k, size)`` rows. Rows beyond the numerical rank of `guides` are zero.
    """
    _, sizes, basis = jnp.linalg.svd(guides, full_matrices=False)
    is_real = sizes > 1e-6 * jnp.maximum(sizes.max(), 1e-30)
    return jnp.where(is_real[:, None], basis, 0.0)
