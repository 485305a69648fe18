"""Classical optimizers with learnable hyperparameters."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps


@dataclass(frozen=True)
class ScheduledSGD(LearnedOptimizer):
    """SGD with a learning rate that moves linearly between two learned values.

    The smallest learned optimizer: ``theta`` is the logarithm of the first and of the
    last learning rate, as in the PES paper's toy problem.
    """

    initial_lr: float = 0.01
    """Learning rate, first and last, before meta-training."""

    def __post_init__(self):
        if not self.initial_lr > 0:
            raise ValueError(
                f"`initial_lr` must be positive; got {self.initial_lr}. Try 0.01."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, "2"]:
        return jnp.full(2, math.log(self.initial_lr), jnp.float32)

    @override
    def as_optax(
        self, theta: Float[Array, "2"], num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        first, last = jnp.exp(theta)
        total = jnp.asarray(num_steps, jnp.float32)

        def learning_rate(step):
            # Past its horizon the schedule stays at its last value.
            progress = jnp.minimum(jnp.asarray(step, jnp.float32) / total, 1.0)
            return (1 - progress) * first + progress * last

        return optax.with_extra_args_support(optax.sgd(learning_rate))
