"""Baselines: hand-designed optimizers, with the learning rate in the place of theta."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps

# Four to a decade.
LEARNING_RATES = np.geomspace(1e-3, 1.0, 13)


@dataclass(frozen=True)
class Adam(LearnedOptimizer):
    """Adam whose theta is the learning rate, so tuning it is mapping over theta."""

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.asarray(1e-3, jnp.float32)

    @override
    def as_optax(
        self, theta: Float[Array, ""], num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        return optax.with_extra_args_support(optax.adam(theta))
